"""Conditions that become rank 0's, or are asked of the mean over ranks, where their values differ by rank."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.rank_values import RankValues
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.decisions.plan import Note, Review
from ds_migrate.plain.edits.runtime_names import Converted, RuntimeNames
from ds_migrate.plain.edits.wrapping import wrap
from ds_migrate.plain.ranks.agreement.common_operations import Condition, test_of
from ds_migrate.plain.ranks.agreement.finite_tests import FINITE, asks_for_finite
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.branches import upwards
from ds_migrate.syntax.nodes import last_name, walk
from ds_migrate.syntax.source import SourceFile

_MEAN, _DECIDES = "mean_over_ranks", "rank_0_decides"


def let_rank_0_decide(test: cst.BaseExpression, file: SourceFile, runtime: RuntimeNames) -> None:
    """Make a condition rank 0's."""
    if file.edits.once(test, _DECIDES):
        wrap(file, test, runtime.name(file, _DECIDES))


def agree_on_condition(
    node: Condition,
    file: SourceFile,
    values: RankValues,
    flow: Flow,
    runtime: RuntimeNames,
    converted: Converted,
    review: Review,
    reason: str,
) -> None:
    """Have all ranks take the same side of a condition that differs by rank."""
    test = test_of(node)
    if isinstance(node, cst.BooleanOperation) and not _is_truth(node, file):
        message = "ranks may part here, by their shares of the data: some evaluate the right side, and others do not"
        review(Note(Code.PLAIN_AGREEMENT, file, node, message, "write it as an if, and convert the original again"))
        return
    finite = [
        call.args[0].value for call in file.nodes(cst.Call, below=test)
        if last_name(call.func) in FINITE and call.args
    ]  # fmt: skip
    finite = [number for number in finite if values.differs(number, file)]
    finite = [part for part in walk(test) if any(part.deep_equals(number) for number in finite)]
    if finite and not _differs_elsewhere(test, finite, file, values):
        for number in finite:
            wrap(file, number, runtime.name(file, _MEAN))
        converted(Code.PLAIN_AGREEMENT, file, test, "all ranks look at the mean over ranks, which is NaN if one is")
    else:
        let_rank_0_decide(test, file, runtime)
        converted(Code.PLAIN_AGREEMENT, file, test, f"rank 0 decides for all ranks: {reason}")
        if asks_for_finite(test, file, flow):
            message = "rank 0 decides by its own numbers, and those of another rank may be NaN or infinite"
            review(Note(Code.PLAIN_AGREEMENT, file, test, message, "test mean_over_ranks() of them instead"))


def _differs_elsewhere(
    test: cst.BaseExpression, numbers: list[cst.BaseExpression], file: SourceFile, values: RankValues
) -> bool:
    """Return whether a condition differs by rank besides the numbers: some ranks might not come to their mean."""
    inside = {id(inner) for number in numbers for inner in walk(number)}
    around = {id(outer) for number in numbers for outer in file.ancestors(number)}
    others = [n for n in walk(test) if isinstance(n, (cst.Name, cst.Attribute, cst.Call)) and id(n) not in inside]
    return any(values.differs(n, file) for n in others if id(n) not in around)


def _is_truth(node: cst.BooleanOperation, file: SourceFile) -> bool:
    """Return whether nothing but the truth of the left side counts, which may then be another object."""
    if isinstance(node.left, cst.Comparison) or (
        isinstance(node.left, cst.UnaryOperation) and isinstance(node.left.operator, cst.Not)
    ):
        return True
    for inner, outer in upwards(file, node):
        if not isinstance(outer, cst.BooleanOperation):
            is_test = isinstance(outer, (cst.If, cst.While, cst.IfExp)) and outer.test is inner
            is_negated = isinstance(outer, cst.UnaryOperation) and isinstance(outer.operator, cst.Not)
            return is_test or is_negated or isinstance(outer, cst.Expr)
    return False
