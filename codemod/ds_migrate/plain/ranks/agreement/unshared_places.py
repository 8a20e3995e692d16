"""Places that ranks come to in other rounds, or not all of them: none may wait for others there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.rank_values import RankValues
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.ranks.agreement.common_operations import CommonOperations
from ds_migrate.plain.ranks.lone_ranks import parts_rank_0
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.branches import upwards
from ds_migrate.syntax.nodes import walk
from ds_migrate.syntax.source import SourceFile

Differs = Callable[[cst.BaseExpression, SourceFile], bool]
_Outer = cst.For | cst.If | cst.While | cst.IfExp | cst.BaseComp
_Place = tuple[SourceFile, _Outer]


class UnsharedPlaces:
    """The places of a program in loops and branches that differ by rank, and that ranks do not agree on.

    Args:
        values: what differs by rank.
        differs: returns whether a condition differs.
        takes_some: returns whether something has another number of items on each rank.
        common: the operations that all ranks do together.
    """

    def __init__(self, values: RankValues, differs: Differs, takes_some: Differs, common: CommonOperations) -> None:
        self._values = values
        self._differs = differs
        self._takes_some = takes_some
        self._common = common

    def above(self, node: cst.CSTNode, file: SourceFile, agreed: Collection[int]) -> _Place | None:
        """Return a loop or branch around a node, or a call that leads to it, of which ranks make other rounds.

        Args:
            agreed: the conditions, by identity, that all ranks agree on.
        """
        return next(self._above(node, file, agreed, set()), None)

    def _above(self, node: cst.CSTNode, file: SourceFile, agreed: Collection[int], seen: set[int]) -> Iterator[_Place]:
        for inner, outer in upwards(file, node):
            if isinstance(outer, cst.FunctionDef):
                break
            is_round = inner is outer.body if isinstance(outer, cst.For) else isinstance(outer, cst.BaseComp)
            if isinstance(outer, (cst.For, cst.BaseComp)) and is_round and self._has_rounds(outer, file):
                yield file, outer
        for branch in self._values.conditions(node, file):
            is_open = branch is not node and id(branch) not in agreed and not parts_rank_0(branch.test)
            if is_open and self._differs(branch.test, file) and not any(part is node for part in walk(branch.test)):
                yield file, branch
        function = file.function(node)
        if function is not None and id(function) not in seen:
            seen.add(id(function))
            for home, call in self._values.flow.callers.of(function):
                yield from self._above(call, home, agreed, seen)

    def _has_rounds(self, loop: cst.For | cst.BaseComp, file: SourceFile) -> bool:
        """Return whether a loop has other rounds on each rank; not where the loop itself is for review for that."""
        if isinstance(loop, cst.For) and self._common.holds(loop.body):
            return False
        over = loop.iter if isinstance(loop, cst.For) else loop.for_in.iter
        parts = (part for part in walk(over) if isinstance(part, cst.BaseExpression))
        return any(self._takes_some(part, file) for part in parts)


def parting_note(node: cst.CSTNode, file: SourceFile, place: _Place, cause: str) -> Note:
    """Return what is for review where ranks cannot agree on a condition.

    Args:
        place: the loop or branch around it that differs by rank.
        cause: what differs by rank there.
    """
    home, outer = place
    where = f"in line {home.reported_position(outer)[0]} of {home.path.name}"
    if isinstance(outer, (cst.If, cst.IfExp)):
        reason, kind = f"some ranks alone take the branch {where}", "branch"
    else:
        reason, kind = f"the loop {where} has other rounds on each", "loop"
    message = f"ranks may part here, by {cause}, and cannot agree: {reason}"
    advice = f"decide outside of this {kind}, where all ranks come: rank_0_decides(condition)"
    return Note(Code.PLAIN_AGREEMENT, file, node, message, advice)
