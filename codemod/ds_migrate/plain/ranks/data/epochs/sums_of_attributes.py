"""Sums that loops over shares make in attributes of objects, as a meter does in its ``update()``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Variable
from ds_migrate.syntax.nodes import number, targets
from ds_migrate.syntax.source import SourceFile

_Loop = tuple[SourceFile, cst.For]


class SumsOfAttributes:
    """The attributes of a program to which loops over shares add, and that nothing else changes.

    Args:
        are_shares: whether what a loop is over is a loader of which each rank has a share.
    """

    def __init__(self, are_shares: Callable[[cst.BaseExpression, SourceFile], bool], flow: Flow) -> None:
        self._are_shares = are_shares
        self._flow = flow
        self._flow.callers = flow.callers
        self._added = {
            line.target.attr.value
            for file, line in flow.nodes(cst.AugAssign)
            if isinstance(line.target, cst.Attribute)
        }  # fmt: skip

    def sums(
        self, attribute: cst.Attribute, file: SourceFile
    ) -> Iterator[tuple[SourceFile, cst.For, tuple[SourceFile, cst.AugAssign]]]:
        """Yield the loops, with their files, that add to an attribute, and the line that does with its file."""
        name = attribute.attr.value
        variable = self._flow.variable(attribute, file) if name in self._added else None
        if variable is None:
            return
        uses = [
            (at, use) for at, use in self._flow.attributes(name)
            if self._flow.variable(use, at) == variable
        ]  # fmt: skip
        lines = [(at, line) for at, use in uses if (line := _setting(use, at)) is not None]
        if any(_makes_other(line) for _, line in lines):
            return
        for at, line in lines:
            if isinstance(line, cst.AugAssign):
                for where, loop in self._loops_to(line, at, self._flow.callers.variables(attribute.value, file)):
                    yield where, loop, (at, line)

    def _loops_to(self, line: cst.AugAssign, file: SourceFile, held: frozenset[Variable]) -> Iterator[_Loop]:
        """Yield the loops over shares around a line, or around calls of its function as a method of one object.

        Args:
            held: the variables that hold the object.
        """
        function = file.function(line)
        calls = self._flow.callers.of(function) if function is not None else ()
        own = [
            (at, call) for at, call in calls
            if isinstance(call.func, cst.Attribute) and self._flow.callers.variables(call.func.value, at) & held
        ]  # fmt: skip
        for at, node in ((file, line), *own):
            loops = (a for a in at.ancestors(node) if isinstance(a, cst.For) and self._are_shares(a.iter, at))
            yield from ((at, loop) for loop in islice(loops, 1))


def _setting(use: cst.Attribute, file: SourceFile) -> cst.Assign | cst.AugAssign | None:
    """Return the line that sets an attribute, where a use of it is that."""
    line = next((a for a in file.ancestors(use) if isinstance(a, (cst.Assign, cst.AugAssign))), None)
    return line if line is not None and any(target is use for target in targets(line)) else None


def _makes_other(line: cst.Assign | cst.AugAssign) -> bool:
    """Return whether a line sets a sum to more than a number, or does not add to it."""
    is_added = isinstance(line, cst.AugAssign) and isinstance(line.operator, cst.AddAssign)
    return not is_added and number(line.value) is None
