"""Conditions that become rank 0's, or are asked of the mean over ranks, where their values differ by rank."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.rank_values import RankValues
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.scopes import names_in
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.decisions.plan import Note, Review
from ds_migrate.plain.edits.expressions import wrap
from ds_migrate.plain.edits.runtime_names import Converted, RuntimeNames
from ds_migrate.plain.ranks.agreement.common_operations import Condition, test_of
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.branches import upwards
from ds_migrate.syntax.nodes import called_name, dotted, last_name, parameters, set_values, walk
from ds_migrate.syntax.source import SourceFile

_MEAN, _DECIDES = "mean_over_ranks", "rank_0_decides"
FINITE = frozenset({"isnan", "isinf", "isfinite"})
_NUMBERS = frozenset({"inf", "nan"})
_DEPTH = 3  # names of names


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
    leaves_out: bool,
) -> None:
    """Have all ranks take the same side of a condition that differs by rank, and may leave out a batch."""
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
        return
    losses = [side for side in _compared(test) if is_backpropagated(side, file) and values.differs(side, file)]
    if losses and not _differs_elsewhere(test, losses, file, values):
        for loss in losses:
            wrap(file, loss, runtime.name(file, _MEAN))
        converted(Code.PLAIN_AGREEMENT, file, test, "all ranks look at the mean of their losses")
    else:
        let_rank_0_decide(test, file, runtime)
        converted(Code.PLAIN_AGREEMENT, file, test, f"rank 0 decides for all ranks: {reason}")
        if asks_for_finite(test, file, flow):
            message = "rank 0 decides by its own numbers, and those of another rank may be NaN or infinite"
            review(Note(Code.PLAIN_AGREEMENT, file, test, message, "test mean_over_ranks() of them instead"))
        elif leaves_out:
            message = "rank 0 decides by its share whether a batch is trained: others might decide otherwise by theirs"
            advice = "compare mean_over_ranks() of a mean; any_rank(condition) leaves out what one rank leaves out"
            review(Note(Code.PLAIN_AGREEMENT, file, test, message, advice))


def _compared(test: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield the numbers that a condition compares with one other number each."""
    for node in walk(test):
        if isinstance(node, cst.Comparison) and len(node.comparisons) == 1:
            yield from (node.left, node.comparisons[0].comparator)


def is_backpropagated(node: cst.BaseExpression, file: SourceFile) -> bool:
    """Return whether a number is a loss, which a backward pass of the same function begins at."""
    if isinstance(node, cst.Call) and called_name(node) == "item" and isinstance(node.func, cst.Attribute):
        node = node.func.value
    name, function = dotted(node), file.function(node)
    calls = (call.func for call in file.nodes(cst.Call, below=function or file.module))
    roots = [func.value for func in calls if isinstance(func, cst.Attribute) and func.attr.value == "backward"]
    roots += [arg.value for call in roots if isinstance(call, cst.Call) for arg in call.args]  # scaler.scale(loss)
    return name is not None and name in map(dotted, roots)


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


def asks_for_finite(test: cst.BaseExpression, file: SourceFile, flow: Flow, depth: int = _DEPTH) -> bool:
    """Return whether a condition is true or false by a test for NaN or infinity: here, by a name, or in a function."""
    if isinstance(test, cst.UnaryOperation):
        return asks_for_finite(test.expression, file, flow, depth)
    if isinstance(test, cst.BooleanOperation):
        return any(asks_for_finite(part, file, flow, depth) for part in (test.left, test.right))
    if any(_is_finite_test(node) for node in walk(test)):
        return True
    if isinstance(test, cst.Name) and depth:
        return any(asks_for_finite(value, file, flow, depth - 1) for value in _assigned(test, file, flow))
    return isinstance(test, cst.Call) and _tests_parameter(test, file, flow)


def _is_finite_test(node: cst.CSTNode) -> bool:
    """Return whether a node is ``isnan(x)``, ``x != x`` or ``x == float("inf")``."""
    if isinstance(node, cst.Call):
        return last_name(node.func) in FINITE or (
            isinstance(node.func, cst.Attribute) and node.func.attr.value in FINITE
        )
    if not isinstance(node, cst.Comparison) or len(node.comparisons) != 1:
        return False
    (target,) = node.comparisons
    if not isinstance(target.operator, (cst.Equal, cst.NotEqual)):
        return False
    return node.left.deep_equals(target.comparator) or any(map(_is_infinite, (node.left, target.comparator)))


def _is_infinite(node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.UnaryOperation):
        node = node.expression
    if isinstance(node, cst.Call) and dotted(node.func) == "float" and len(node.args) == 1:
        text = node.args[0].value
        return isinstance(text, cst.SimpleString) and str(text.evaluated_value).lower().lstrip("+-") in _NUMBERS
    return isinstance(node, cst.Attribute) and node.attr.value in _NUMBERS


def _assigned(name: cst.Name, file: SourceFile, flow: Flow) -> Iterator[cst.BaseExpression]:
    for node in flow.scopes(file).nodes(name, cst.Assign, cst.AnnAssign):
        for target, value in set_values(node):
            if name.value in names_in(target) and (value or node.value) is not None:
                yield value or node.value


def _tests_parameter(call: cst.Call, file: SourceFile, flow: Flow) -> bool:
    """Return whether a function of the program tests its arguments."""
    for value in of_kind(flow.values(call.func, file), Kind.FUNCTION, Kind.METHOD):
        function = flow.node(value)
        if isinstance(function, cst.FunctionDef):
            names = {parameter.name.value for parameter in parameters(function)}
            found = [node for node in walk(function.body) if _is_finite_test(node)]
            if any(isinstance(part, cst.Name) and part.value in names for node in found for part in walk(node)):
                return True
    return False
