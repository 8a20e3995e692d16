"""Names that have a value on each way to a statement."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from ds_migrate.plain.dataflow.scopes import names_in
from ds_migrate.syntax.nodes import last_statement, targets, walk
from ds_migrate.syntax.source import SourceFile

_LEAVES = (cst.Return, cst.Raise, cst.Continue, cst.Break)


def is_always_set(name: str, statement: cst.CSTNode, file: SourceFile) -> bool:
    """Return whether lines above a statement set a name, in blocks around it: of an ``if`` in each branch."""
    inner = statement
    for outer in file.ancestors(statement):
        if isinstance(outer, (cst.IndentedBlock, cst.Module)):
            place = next((i for i, line in enumerate(outer.body) if line is inner), 0)
            if any(_sets(line, name) for line in outer.body[:place]):
                return True
        bound = names_in(outer.target) if isinstance(outer, cst.For) else []
        items = outer.items if isinstance(outer, cst.With) else []
        if name in bound or any(_is_among(name, walk(item)) for item in items):
            return True
        if isinstance(outer, cst.FunctionDef):
            break
        inner = outer
    return False


def _sets(node: cst.CSTNode, name: str) -> bool:
    if not isinstance(node, cst.If):
        return _is_among(name, walk(node))
    branches = [node.body, node.orelse.body if isinstance(node.orelse, cst.Else) else node.orelse]
    return any(branch is not None and _sets_in(branch, name) for branch in branches) and all(
        branch is not None and (_sets_in(branch, name) or _is_left(branch)) for branch in branches
    )


def _sets_in(branch: cst.CSTNode, name: str) -> bool:
    if isinstance(branch, cst.If):
        return _sets(branch, name)
    return any(_sets(line, name) for line in getattr(branch, "body", ()))


def _is_left(branch: cst.CSTNode) -> bool:
    return isinstance(branch, cst.BaseSuite) and isinstance(last_statement(branch), _LEAVES)


def _is_among(name: str, nodes: Iterable[cst.CSTNode]) -> bool:
    """Return whether one of these nodes gives a name a value."""
    for node in nodes:
        if isinstance(node, (cst.Assign, cst.AnnAssign)):
            bound = {one for target in targets(node) for one in names_in(target)}
        elif isinstance(node, (cst.For, cst.NamedExpr)):
            bound = set(names_in(node.target))
        elif isinstance(node, cst.AsName):
            bound = set(names_in(node.name))
        elif isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            bound = {node.name.value}
        else:
            continue
        if name in bound:
            return True
    return False
