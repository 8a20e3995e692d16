"""Conditions that hold on all ranks or on none: what is under them may take part of every rank."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.program_arguments import is_command, needs_all_ranks
from ds_migrate.plain.dataflow.by_rank.shared_values import RANK, Known, SharedValues
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.syntax.nodes import (
    dotted,
    walk,
)
from ds_migrate.syntax.source import SourceFile

FIRST = "rank 0 first"  # marks a statement that ranks run one after the other
Branch = tuple[SourceFile, cst.If | cst.While]


def runs_in_turn(node: cst.CSTNode, file: SourceFile) -> bool:
    """Return whether rank 0 runs a node first, and the other ranks one after the other."""
    return any(file.edits.is_done(outer, FIRST) for outer in (node, *file.ancestors(node)))


class RankConditions:
    """Conditions around a place, and whether all ranks reach it, as far as the program shows.

    Args:
        flow: of the program.
        callers: of its functions.
        is_common: returns whether another expression has the same value on all ranks, beside those that show it.
        finds_files: whether all ranks find the same files; not where one may just have made some.
    """

    def __init__(self, flow: Flow, is_common: Known | None = None, finds_files: bool = True) -> None:
        self._flow = flow
        self._values = SharedValues(flow, self._is_under_shared_conditions, is_common, finds_files)
        self._open: set[int] = set()  # functions that are being looked into, and may call themselves

    def reach_all(self, node: cst.CSTNode, file: SourceFile, undecided: list[Branch] | None = None) -> bool:
        """Return whether all ranks reach a node as often: no condition around it, or its callers, may differ.

        ``undecided`` takes the statements whose conditions may differ, and which are then assumed to be agreed on.
        """
        function = file.function(node)
        jumps = file.nodes(cst.Return, cst.Break, cst.Continue, cst.Raise, below=function or file.module)
        before = [j for j in jumps if file.function(j) is function and file.position(j) < file.position(node)]
        before = [j for j in before if _may_skip(j, node, file)]
        if not all(self._is_under_shared_conditions(place, file, undecided) for place in (node, *before)):
            return False
        if function is None or id(function) in self._open:
            return True
        self._open.add(id(function))
        calls = self._flow.callers.of(function)
        is_reached = bool(calls) or is_command(function, self._flow) or needs_all_ranks(function, self._flow)
        result = is_reached and all(self.reach_all(call, caller, undecided) for caller, call in calls)
        self._open.discard(id(function))
        return result

    def undecided(self, node: cst.CSTNode, file: SourceFile) -> list[Branch] | None:
        """Return the statements whose conditions rank 0 must decide, for all ranks to reach a node as often.

        None where that is not enough: a condition asks for a rank, or is not that of an ``if`` or ``while``.
        """
        found: list[Branch] = []
        reaches = self.reach_all(node, file, found)
        return found if reaches and not any(_asks_for_rank(statement.test) for _, statement in found) else None

    def _is_under_shared_conditions(
        self, node: cst.CSTNode, file: SourceFile, undecided: list[Branch] | None = None
    ) -> bool:
        """Return whether the conditions around a node, in its function, hold on all ranks or on none."""
        if runs_in_turn(node, file):
            return False
        inner: cst.CSTNode = node
        for outer in file.ancestors(node):
            if isinstance(outer, cst.FunctionDef):
                return True
            if isinstance(outer, (cst.If, cst.While, cst.IfExp)) and inner is not outer.test:
                is_entry = isinstance(outer, cst.If) and _asks_for_name(outer.test)
                if not is_entry and not self.is_shared(outer.test, file):
                    if undecided is None or isinstance(outer, cst.IfExp):
                        return False
                    undecided.append((file, outer))
            if isinstance(outer, (cst.ExceptHandler, cst.Lambda, cst.BooleanOperation, cst.BaseComp)):
                return False
            inner = outer
        return True

    def is_shared(self, node: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether an expression has the same value on all ranks."""
        return self._values.is_shared(node, file)


def _may_skip(jump: cst.CSTNode, node: cst.CSTNode, file: SourceFile) -> bool:
    """Return whether a jump can lead past a node behind it: one out of a loop does so where the loop holds the node."""
    if not isinstance(jump, (cst.Break, cst.Continue)):
        return True
    loop = file.around(jump, cst.For, cst.While)
    return loop is None or any(outer is loop for outer in file.ancestors(node))


def _asks_for_name(test: cst.BaseExpression) -> bool:
    """Return whether a test is the one of ``if __name__ == "__main__"``."""
    return isinstance(test, cst.Comparison) and dotted(test.left) == "__name__"


def _asks_for_rank(test: cst.BaseExpression) -> bool:
    return any(isinstance(n, cst.Name) and RANK.search(n.value) is not None for n in walk(test))
