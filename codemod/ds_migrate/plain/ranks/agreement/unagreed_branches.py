"""Branches that each rank takes by its share of the data, and that no condition of one place decides."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.rank_values import RankValues
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.ranks.agreement.batch_sizes import BatchSizes
from ds_migrate.plain.ranks.agreement.common_operations import CommonOperations
from ds_migrate.plain.ranks.agreement.share_sizes import DEPTH, holds_some, sizes_differ
from ds_migrate.plain.ranks.data.losses.batch_totals import BatchTotals
from ds_migrate.plain.ranks.data.losses.selected_samples import is_selected
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import dotted, last_name, walk
from ds_migrate.syntax.source import SourceFile

_CHOICES = (cst.Name, cst.Subscript, cst.IfExp, cst.Call)
_TAKES_SOME = frozenset({"filter", "filterfalse", "takewhile", "dropwhile", "compress"})
_ENDING = frozenset({"any", "all", "next"})
_ADVICE = "make it an if, whose condition all ranks can share by rank_0_decides()"


def unagreed_branches(
    files: Iterable[SourceFile], values: RankValues, sizes: BatchSizes, common: CommonOperations, flow: Flow
) -> Iterator[Note]:
    """Yield a note where ranks may do other things that all do together, and cannot be made to agree."""
    totals = BatchTotals(flow, values)
    for file in files:
        for node in file.nodes(cst.Match):
            tests = [node.subject, *(case.guard for case in node.cases if case.guard is not None)]
            bodies = [case.body for case in node.cases]
            if any(values.differs(test, file) for test in tests) and common.are_reached_by(bodies, file):
                is_of_samples = any(values.of_samples.differs(test, file) for test in tests)
                cause = "its share of the data" if is_of_samples else "the time that it reads"
                message = f"each rank takes the case of {cause} here, and some may leave others waiting"
                yield Note(Code.PLAIN_AGREEMENT, file, node.subject, message, _ADVICE)
        for call in file.nodes(cst.Call):
            if isinstance(call.func, _CHOICES) and _is_chosen(call.func, file, values, common, flow):
                message = "each rank calls a function by its share of the data here, and some may leave others waiting"
                yield Note(Code.PLAIN_AGREEMENT, file, call, message, _ADVICE)
            elif _ends_early(call, file, values, common):
                message = "each rank ends this by its share of the data, and some may leave others waiting"
                yield Note(Code.PLAIN_AGREEMENT, file, call, message, _ADVICE)
        for line in file.nodes(cst.Raise):
            if _is_raised_unseen(line, file, common, flow):
                message = "a rank that raises this alone leaves the others waiting: no call of the function is found"
                advice = "raise it where rank_0_decides(condition), which all ranks come to"
                yield Note(Code.PLAIN_AGREEMENT, file, line, message, advice)
        for loop in file.nodes(cst.For):
            if not common.holds(loop.body):
                continue
            parts = [part for part in walk(loop.iter) if isinstance(part, cst.BaseExpression)]
            taken = next((part for part in parts if takes_some(part, file, values, sizes, totals)), None)
            if taken is not None:
                message = "the share of the data gives each rank a number of rounds here: some may leave others waiting"
                advice = "make it an if in the loop, whose condition all ranks can share by rank_0_decides()"
                yield Note(Code.PLAIN_AGREEMENT, file, taken, message, advice)


def _is_raised_unseen(line: cst.Raise, file: SourceFile, common: CommonOperations, flow: Flow) -> bool:
    """Return whether a condition raises what ends training, in a function of which no call is followed: a callback."""
    function, raised = file.function(line), line.exc.func if isinstance(line.exc, cst.Call) else line.exc
    if function is None or raised is None or not common.handles(line) or flow.callers.of(function):
        return False
    return bool(of_kind(flow.values(raised, file), Kind.CLASS)) and any(
        isinstance(outer, cst.If) and file.function(outer) is function for outer in file.ancestors(line)
    )


def _is_chosen(
    func: cst.BaseExpression, file: SourceFile, values: RankValues, common: CommonOperations, flow: Flow
) -> bool:
    """Return whether it differs by rank which function a call runs, of which one leads to a common operation."""
    functions = of_kind(flow.values(func, file), Kind.FUNCTION, Kind.METHOD)
    return len(functions) > 1 and values.differs(func, file) and any(map(common.holds, map(flow.node, functions)))


def _ends_early(call: cst.Call, file: SourceFile, values: RankValues, common: CommonOperations) -> bool:
    """Return whether ``any(step(x) for x in batches)`` ends with an item that differs by rank, and is common."""
    made = call.args[0].value if len(call.args) == 1 and dotted(call.func) in _ENDING else None
    return isinstance(made, cst.GeneratorExp) and common.holds(made.elt) and values.differs(made.elt, file)


def takes_some(
    node: cst.BaseExpression, file: SourceFile, values: RankValues, sizes: BatchSizes, totals: BatchTotals
) -> bool:
    """Return whether something is as many items of a share of the data as a condition or their sizes give."""
    if isinstance(node, cst.Call) and last_name(node.func) in _TAKES_SOME and len(node.args) == 2:
        return any(values.differs(arg.value, file) or values.is_share(arg.value, file) for arg in node.args)
    if is_selected(node, file, totals) or holds_some(node, file, values, DEPTH) or sizes.splits_samples(node, file):
        return True
    given = [arg.value for arg in node.args] if isinstance(node, cst.Call) else []
    return any(sizes_differ(one, file, values, totals) or sizes.are_of_samples(one, file) for one in given)
