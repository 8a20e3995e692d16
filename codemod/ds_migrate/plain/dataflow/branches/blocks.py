"""The blocks of a function: what is in one of them runs under the same conditions."""

from __future__ import annotations

import libcst as cst

from ds_migrate.syntax.source import SourceFile


def block_path(node: cst.CSTNode, file: SourceFile) -> tuple[int, ...]:
    """Return the branches and loops that a node is in, outermost first, up to its function."""
    found: list[int] = []
    inner: cst.CSTNode = node
    for outer in file.ancestors(node):
        if isinstance(outer, cst.FunctionDef):
            break
        if isinstance(outer, (cst.If, cst.Else, cst.For, cst.While, cst.ExceptHandler)) and inner is outer.body:
            found.append(id(outer))
        inner = outer
    return tuple(reversed(found))


def always_runs_before(line: cst.CSTNode, node: cst.CSTNode, file: SourceFile) -> bool:
    """Return whether a line is above a node in a block around it."""
    block = file.parent(file.statement(line))
    is_around = any(outer is block for outer in file.ancestors(node))
    return is_around and file.function(line) is file.function(node) and file.position(line) < file.position(node)
