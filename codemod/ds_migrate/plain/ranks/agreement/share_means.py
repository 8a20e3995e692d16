"""Numbers whose mean over ranks is what the whole batch gives: means of a batch, and what is linear in them."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.rank_values import RankValues
from ds_migrate.plain.dataflow.scopes import names_in
from ds_migrate.syntax.nodes import called_name, dotted, parameters, targets
from ds_migrate.syntax.source import SourceFile

_DEPTH = 16
_MOVES = frozenset(
    {
        "permute", "transpose", "contiguous", "view", "view_as", "reshape", "flatten", "squeeze", "unsqueeze", "expand",
        "expand_as", "clone", "detach", "float", "double", "to", "type_as", "cpu", "cuda", "item",
    }
)  # fmt: skip
_OF_EACH = _MOVES | {"abs", "square", "pow", "exp", "log", "sqrt"}


class ShareMeans:
    """The numbers of a program that are made of means of a batch."""

    def __init__(self, flow: Flow, values: RankValues) -> None:
        self._flow = flow
        self._values = values

    def is_mean(self, node: cst.BaseExpression, file: SourceFile, depth: int = _DEPTH) -> bool:
        """Return whether the mean over ranks of a number is what the whole batch gives, as shares are equally large."""
        if not self._values.differs(node, file):
            return True
        if depth == 0:
            return False
        depth -= 1
        if isinstance(node, cst.Call):
            operand, name = self._operand(node, file), called_name(node)
            if operand is not None and name == "mean":
                return self._is_of_each(operand, file, depth)
            return operand is not None and name in _MOVES and self.is_mean(operand, file, depth)
        if isinstance(node, cst.BinaryOperation):
            left, right = (self._values.differs(side, file) for side in (node.left, node.right))
            is_sum = isinstance(node.operator, (cst.Add, cst.Subtract))
            is_product = isinstance(node.operator, cst.Multiply) and not (left and right)
            is_linear = is_sum or is_product or (isinstance(node.operator, cst.Divide) and not right)
            return is_linear and self.is_mean(node.left, file, depth) and self.is_mean(node.right, file, depth)
        if isinstance(node, cst.UnaryOperation):
            return isinstance(node.operator, cst.Minus) and self.is_mean(node.expression, file, depth)
        if isinstance(node, cst.Subscript):
            return self.is_mean(node.value, file, depth)
        assigned = self._assigned(node, file)
        return bool(assigned) and all(self.is_mean(value, file, depth) for value in assigned)

    def _is_of_each(self, node: cst.BaseExpression, file: SourceFile, depth: int) -> bool:
        """Return whether an expression is a batch, or made of each of its samples alone."""
        if not self._values.differs(node, file):
            return True
        if depth == 0:
            return False
        depth -= 1
        if isinstance(node, cst.Call):
            operand = self._operand(node, file) if called_name(node) in _OF_EACH else None
            return operand is not None and self._is_of_each(operand, file, depth)
        if isinstance(node, cst.BinaryOperation):
            return all(self._is_of_each(side, file, depth) for side in (node.left, node.right))
        if isinstance(node, cst.UnaryOperation):
            return self._is_of_each(node.expression, file, depth)
        assigned = self._assigned(node, file)
        is_made_of_each = bool(assigned) and all(self._is_of_each(value, file, depth) for value in assigned)
        return is_made_of_each or self._is_batch(node, file)

    def _operand(self, call: cst.Call, file: SourceFile) -> cst.BaseExpression | None:
        """Return the one argument of a call that differs by rank, or the object whose method it is."""
        owner = [call.func.value] if isinstance(call.func, cst.Attribute) else []
        parts = [part for part in (*owner, *(arg.value for arg in call.args)) if self._values.differs(part, file)]
        return parts[0] if len(parts) == 1 or (parts and called_name(call) in _MOVES) else None

    def _is_batch(self, node: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether a name is an argument of its function, or what a loop gives, and nothing else."""
        if not isinstance(node, cst.Name) or self._flow.scopes(file).assigned(node) or self._is_changed(node, file):
            return False
        loops = [loop for loop in file.ancestors(node) if isinstance(loop, cst.For)]
        function = file.function(node)
        given = [param.name.value for param in parameters(function)] if function is not None else []
        return node.value in (*given, *(name for loop in loops for name in names_in(loop.target)))

    def _assigned(self, node: cst.BaseExpression, file: SourceFile) -> list[cst.BaseExpression]:
        """Return what a name is assigned; nothing where it changes otherwise, too."""
        if not isinstance(node, cst.Name) or self._is_changed(node, file):
            return []
        return self._flow.scopes(file).assigned(node)

    def _is_changed(self, name: cst.Name, file: SourceFile) -> bool:
        """Return whether something is added to a name, or it changes by another operation."""
        lines = file.nodes(cst.AugAssign, below=self._flow.scopes(file).owner(name.value, name))
        return any(dotted(target) == name.value for line in lines for target in targets(line))
