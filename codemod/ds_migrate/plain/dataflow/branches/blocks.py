"""The blocks of a function, which run under the same conditions, and the jumps out of them."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.syntax.nodes import dotted
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


JUMPS = (cst.Continue, cst.Break, cst.Return)
_LOOPS = (cst.For, cst.While)
_EXITS = frozenset({"sys.exit", "exit", "quit", "os._exit", "_exit", "SystemExit"})


class Jumps:
    """The jumps of a file, with the conditions under which they are made."""

    def __init__(self, file: SourceFile) -> None:
        self._file = file
        self._inside: dict[int, list[tuple[cst.CSTNode, list[cst.If]]]] = {}
        for jump in file.nodes(*JUMPS):
            tests = list[cst.If]()
            for outer in file.ancestors(jump):
                if isinstance(outer, cst.If) and not _asks_for_none(outer.test):
                    tests.append(outer)
                is_left = isinstance(outer, cst.FunctionDef if isinstance(jump, cst.Return) else _LOOPS)
                if is_left and tests:
                    self._inside.setdefault(id(outer), []).append((jump, tests))
                if is_left:
                    break

    def conditions(self, node: cst.CSTNode) -> Iterator[cst.If]:
        """Yield the conditions whose jumps decide if, or how often, a statement runs."""
        for outer in self._file.ancestors(node) if self._inside else ():
            for jump, tests in self._inside.get(id(outer), ()):
                if isinstance(jump, cst.Break) or self._file.position(jump) < self._file.position(node):
                    yield from tests
            if isinstance(outer, cst.FunctionDef):
                return


def _asks_for_none(test: cst.BaseExpression) -> bool:
    """Return whether a condition asks whether something is there, which is so on each rank, or on none."""
    parts = test.comparisons if isinstance(test, cst.Comparison) else ()
    return any(dotted(part.comparator) == "None" for part in parts)


def is_exit(node: cst.CSTNode) -> bool:
    """Return whether a node is a call that ends the program, or makes the exception that does."""
    return isinstance(node, cst.Call) and dotted(node.func) in _EXITS
