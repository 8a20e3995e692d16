"""Losses that are sums over a batch: gradients are averaged over ranks, where one rank adds up those of all samples."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.rank_values import RankValues
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, Value, of_kind
from ds_migrate.plain.decisions.plan import Note, ProgramPlan
from ds_migrate.plain.ranks.data.losses.returned_values import returned_values
from ds_migrate.plain.ranks.data.losses.sample_sums import SampleSums
from ds_migrate.plain.ranks.data.losses.torch_losses import reduction_of
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import argument, called_name, dotted, operands, parameters, targets, walk
from ds_migrate.syntax.source import SourceFile

_DEPTH = 12
_REDUCTIONS = ("reduction", "size_average", "reduce", "length_average")
_SUMS = frozenset({"torchcrf.CRF", "warpctc_pytorch.CTCLoss"})  # unless they are given another reduction
_KEEPS = frozenset({"sum", "squeeze", "float", "double", "to", "clone", "view", "reshape", "scale"})
_Found = tuple[SourceFile, cst.Call]


def summed_losses(plan: ProgramPlan, values: RankValues) -> Iterator[Note]:
    """Yield a note for each loss that adds up a batch's samples, and is not divided before its backward pass.

    The terms that a function adds up for one backward pass are for one note.
    """
    losses = _SummedLosses(plan.facts.flow, values)
    found = dict[int, _Found]()
    for backward in plan.fed:
        terms = list(losses.within(backward.loss, backward.file))
        first = {id(file.function(call)): (file, call) for file, call in reversed(terms)}
        found.update((id(call), (file, call)) for file, call in first.values())
    for file, call in found.values():
        message = (
            "this loss is a sum over a batch: n ranks, which average gradients, step by 1/n of those of all samples"
        )
        advice = "divide it by the number of samples, or multiply it by the number of ranks"
        yield Note(Code.PLAIN_SAMPLER, file, call, message, advice)


class _SummedLosses:
    def __init__(self, flow: Flow, values: RankValues) -> None:
        self._flow = flow
        self._sums = SampleSums(flow, values)

    def within(self, node: cst.BaseExpression, file: SourceFile, depth: int = _DEPTH) -> Iterator[_Found]:
        """Yield the calls that add up a batch's samples in a number, unless it is divided."""
        if depth == 0:
            return
        depth -= 1
        if isinstance(node, cst.Call):
            yield from self._of_call(node, file, depth)
        elif isinstance(node, cst.BinaryOperation):
            sides = (node.left, node.right)
            is_scaled = isinstance(node.operator, cst.Multiply) and any(map(_is_quotient, sides))
            if isinstance(node.operator, (cst.Add, cst.Subtract, cst.Multiply)) and not is_scaled:
                for side in sides:
                    yield from self.within(side, file, depth)
        elif isinstance(node, cst.UnaryOperation):
            yield from self.within(node.expression, file, depth)
        elif isinstance(node, cst.IfExp):
            for side in (node.body, node.orelse):
                yield from self.within(side, file, depth)
        elif isinstance(node, cst.Name):
            yield from self._of_name(node, file, depth)

    def _of_call(self, call: cst.Call, file: SourceFile, depth: int) -> Iterator[_Found]:
        values = self._flow.values(call.func, file)
        made = of_kind(values, Kind.OBJECT, Kind.MODULE)
        initializers = [self._initializer(value) for value in of_kind(values, Kind.INSTANCE)]
        makers = [call, *(maker for value in made if isinstance(maker := self._flow.node(value), cst.Call))]
        makers += [maker for init in initializers if init is not None for _, maker in self._flow.callers.of(init)]
        is_reduced = any(argument(maker, None, name) is not None for maker in makers for name in _REDUCTIONS)
        is_sum = any(reduction_of(maker) == "sum" for maker in makers) or (
            not is_reduced and any(value.name in _SUMS for value in made)
        )
        if is_sum or (self._sums.holds(call, file) and not _is_by_choice(call, file)):
            yield file, call
            return
        options = {p.name.value for init in initializers if init is not None for p in parameters(init)}
        if options.intersection(_REDUCTIONS):
            return  # its default is a mean
        for home, value in returned_values(call, file, self._flow):
            yield from self.within(value, home, depth)
        if called_name(call) in _KEEPS:
            for part in operands(call):
                yield from self.within(part, file, depth)

    def _initializer(self, value: Value) -> cst.FunctionDef | None:
        method = self._flow.classes.method(value.key, "__init__")
        function = self._flow.node(method) if method is not None else None
        return function if isinstance(function, cst.FunctionDef) else None

    def _of_name(self, name: cst.Name, file: SourceFile, depth: int) -> Iterator[_Found]:
        scopes = self._flow.scopes(file)
        added = [line for line in scopes.nodes(name, cst.AugAssign) if dotted(line.target) == name.value]
        if any(isinstance(line.operator, cst.DivideAssign) for line in added):
            return
        assigned = [*scopes.assigned(name), *(line.value for line in added)]
        if any(map(_is_quotient, assigned)):
            return
        for value in assigned:
            if file.position(value) < file.position(name):
                yield from self.within(value, file, depth)
        for line in scopes.nodes(name, cst.Assign):
            for target in targets(line):
                if isinstance(target, cst.Tuple) and isinstance(line.value, cst.Call):
                    yield from self._unpacked(target, line.value, name, file, depth)

    def _unpacked(
        self, target: cst.Tuple, call: cst.Call, name: cst.Name, file: SourceFile, depth: int
    ) -> Iterator[_Found]:
        names = [dotted(element.value) for element in target.elements]
        index = names.index(name.value) if name.value in names else len(names)
        for home, value in returned_values(call, file, self._flow):
            if isinstance(value, cst.Tuple) and index < len(value.elements):
                yield from self.within(value.elements[index].value, home, depth)


def _is_by_choice(node: cst.CSTNode, file: SourceFile) -> bool:
    """Return whether a setting chooses a sum: ``if self.reduction == "sum": return loss.sum()``."""
    tests = [outer.test for outer in file.ancestors(node) if isinstance(outer, (cst.If, cst.IfExp))]
    texts = [part for test in tests for part in walk(test) if isinstance(part, cst.SimpleString)]
    return any(text.evaluated_value == "sum" for text in texts)


def _is_quotient(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.BinaryOperation) and isinstance(node.operator, (cst.Divide, cst.FloorDivide))
