"""Sums over all that a tensor of samples holds: ``((model(x) - y) ** 2).sum()``."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.rank_values import RankValues
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.ranks.data.losses.returned_values import returned_values
from ds_migrate.syntax.nodes import argument, called_name, code, dotted
from ds_migrate.syntax.source import SourceFile

# Methods and functions of torch that make a number of each one, and what is no loss yet.
_CHANGES = frozenset(
    {"abs", "exp", "log", "log1p", "log_sigmoid", "log_softmax", "logsigmoid", "pow", "sigmoid", "softmax", "softplus",
     "square"}
)  # fmt: skip
_KEEPS = frozenset({"clamp", "contiguous", "float", "masked_fill", "squeeze", "sum", "mean", "view", "reshape"})
_LIBRARIES = frozenset({"torch", "F", "functional", "nn.functional", "torch.nn.functional"})
_DEPTH = 8


class SampleSums:
    """The sums over samples of a program.

    Args:
        flow: of the program.
        values: those that differ by rank, as all do that are made of a batch.
    """

    def __init__(self, flow: Flow, values: RankValues) -> None:
        self._flow = flow
        self._values = values
        self._known: dict[tuple[int, int, bool], bool] = {}  # by expression, depth and whether it is changed

    def holds(self, call: cst.Call, file: SourceFile) -> bool:
        """Return whether a call adds up all numbers of a tensor that is made, number by number, of samples."""
        operands = _operands(call)
        return called_name(call) == "sum" and len(operands) == 1 and self._has_samples(operands[0], file, _DEPTH, False)

    def _has_samples(self, node: cst.BaseExpression, file: SourceFile, depth: int, is_changed: bool) -> bool:
        """Return whether an expression is of many numbers, those of samples.

        Args:
            is_changed: whether something around it makes a number of each: a loss that is one number has none of that.
        """
        if not depth or not self._values.differs(node, file):
            return False
        question = (id(node), depth, is_changed)
        if question not in self._known:
            self._known[question] = self._find_samples(node, file, depth, is_changed)
        return self._known[question]

    def _find_samples(self, node: cst.BaseExpression, file: SourceFile, depth: int, is_changed: bool) -> bool:
        if isinstance(node, cst.UnaryOperation):
            return self._has_samples(node.expression, file, depth, is_changed)
        if isinstance(node, cst.BinaryOperation):
            sides = (node.left, node.right)
            both = all(self._values.differs(side, file) for side in sides)
            is_changed |= isinstance(node.operator, cst.Power)
            is_changed |= both and isinstance(node.operator, (cst.Subtract, cst.Multiply))
            return any(self._has_samples(side, file, depth, is_changed) for side in sides)
        if isinstance(node, cst.Call):
            return self._returns_samples(node, file, depth, is_changed)
        if isinstance(node, cst.Name):
            assigned = self._flow.scopes(file).assigned(node)
            return any(self._has_samples(value, file, depth - 1, is_changed) for value in assigned) or (
                is_changed and not assigned
            )
        return is_changed and isinstance(node, cst.Subscript)

    def _returns_samples(self, call: cst.Call, file: SourceFile, depth: int, is_changed: bool) -> bool:
        name, reduction = called_name(call), argument(call, None, "reduction")
        if reduction is not None:
            return isinstance(reduction.value, cst.SimpleString) and reduction.value.evaluated_value == "none"
        called = self._flow.values(call.func, file)
        returned = list(returned_values(call, file, self._flow))
        if returned:
            return any(self._has_samples(value, home, depth - 1, is_changed) for home, value in returned)
        if of_kind(called, Kind.MODULE):
            return is_changed
        operands = _operands(call)
        is_over_samples = name == "mean" and "0" in map(code, operands[1:])
        if is_over_samples or (name in ("sum", "mean") and len(operands) == 1):
            return False
        is_known = name in _CHANGES or name in _KEEPS
        return (
            is_known and bool(operands) and self._has_samples(operands[0], file, depth, is_changed or name in _CHANGES)
        )


def _operands(call: cst.Call) -> list[cst.BaseExpression]:
    """Return what a function or a method of torch computes with, the tensor first."""
    given = [arg.value for arg in call.args]
    is_method = isinstance(call.func, cst.Attribute) and (dotted(call.func.value) or "") not in _LIBRARIES
    return [call.func.value, *given] if is_method and isinstance(call.func, cst.Attribute) else given
