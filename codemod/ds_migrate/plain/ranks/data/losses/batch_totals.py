"""Numbers that a whole batch gives, as a mean or a sum over its samples, where each rank has a share of the data."""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.rank_values import RankValues
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.scopes import names_in
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.ranks.data.losses.returned_values import returned_values
from ds_migrate.plain.ranks.data.losses.torch_losses import loss_makers, reduction_of
from ds_migrate.plain.recognition.batches.loaders import loaders_of
from ds_migrate.syntax.nodes import (
    argument,
    called_name,
    code,
    dotted,
    elements,
    last_name,
    number,
    operands,
    single_index,
    walk,
)
from ds_migrate.syntax.source import SourceFile

MEANS = frozenset({"mean", "nanmean"})
SUMS = frozenset({"sum", "nansum"})
SPREADS = frozenset(
    {"std", "var", "norm", "logsumexp", "median", "quantile", "percentile", "prod", "softmax", "log_softmax",
     "corrcoef", "cov", "cosine_similarity"}
)  # fmt: skip
EXTREMES = frozenset({"max", "min", "amax", "amin"})
_KEEPS_SIZE = frozenset({"softmax", "log_softmax"})
_NEEDS_DIM = frozenset({"logsumexp", "softmax", "log_softmax", "cosine_similarity"})
# The position of dim= behind the tensor, where it is no first argument.
_DIM = {"norm": 1, "quantile": 1, "percentile": 1, "cosine_similarity": 1}
# What gives a number for each number, and what only changes how it is kept.
OF_EACH = frozenset(
    {"log", "log1p", "log2", "log10", "exp", "expm1", "sqrt", "rsqrt", "pow", "square", "reciprocal", "abs", "relu",
     "clamp", "clamp_min", "clamp_max", "clip", "sigmoid", "logsigmoid", "tanh", "softplus", "max", "min", "maximum",
     "minimum", "where"}
)  # fmt: skip
_KEEPS = frozenset(
    {"item", "detach", "clone", "float", "double", "half", "to", "type_as", "cpu", "cuda", "squeeze", "unsqueeze",
     "view", "reshape", "expand", "expand_as", "repeat", "add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_",
     "int", "neg", "contiguous", "stack", "diagonal", "diag", "flatten", "pow_", "tensor", "as_tensor"}
)  # fmt: skip
# With the further arguments for which they transpose a matrix, or each of those that a tensor has.
_TRANSPOSED = {"t": ((),), "transpose": (("0", "1"), ("1", "0")), "permute": (("1", "0"),)}
_EACH_TRANSPOSED = {
    "transpose": (("1", "2"), ("2", "1"), ("-1", "-2"), ("-2", "-1")), "permute": (("0", "2", "1"),)
}  # fmt: skip

_Find = Callable[[cst.CSTNode, SourceFile, "BatchTotals", int], bool]


class BatchTotals:
    """The expressions of a program that a whole batch gives.

    Args:
        flow: of the program.
        values: what differs by rank.
    """

    def __init__(self, flow: Flow, values: RankValues) -> None:
        self.flow = flow
        self._values = values
        self._answers: dict[int, tuple[cst.CSTNode, bool]] = {}  # with the nodes, which keeps their ids
        self._found: dict[tuple[_Find, int, int], tuple[cst.CSTNode, bool]] = {}

    def once(self, find: _Find, node: cst.CSTNode, file: SourceFile, depth: int) -> bool:
        """Return what a function finds of an expression to a depth, which it is asked once."""
        question = find, id(node), depth
        if question not in self._found:
            self._found[question] = node, False  # where it is made of itself
            self._found[question] = node, find(node, file, self, depth)
        return self._found[question][1]

    def differs(self, node: cst.CSTNode, file: SourceFile) -> bool:
        """Return whether an expression may have another value on another rank."""
        return self._values.differs(node, file)

    def is_total(self, node: cst.CSTNode, file: SourceFile) -> bool:
        """Return whether an expression is made of numbers that a whole batch gives, and of none of its samples."""
        if id(node) not in self._answers:
            self._answers[id(node)] = node, False  # where it is made of itself
            self._answers[id(node)] = node, self.differs(node, file) and self._find_total(node, file)
        return self._answers[id(node)][1]

    def _find_total(self, node: cst.CSTNode, file: SourceFile) -> bool:

        def are_totals(*parts: cst.CSTNode) -> bool:
            found = [part for part in parts if self.differs(part, file)]
            return bool(found) and all(self.is_total(part, file) for part in found)

        if isinstance(node, cst.Call):
            reductions = map(reduction_of, loss_makers(node, file, self.flow))
            if self.reduces(node, file) or not {"mean", "sum"}.isdisjoint(reductions):
                return called_name(node) not in _KEEPS_SIZE
            given = operands(node)
            returned = list(returned_values(node, file, self.flow))
            if returned:
                are_all = all(self.is_total(value, home) for home, value in returned)
                return are_all or are_totals(*given)
            name = called_name(node)
            is_product = name in ("mm", "matmul") and transposed(given[-2]) is not None
            return is_product or (name in OF_EACH | _KEEPS and are_totals(*given))
        if isinstance(node, cst.BinaryOperation):
            is_product = isinstance(node.operator, cst.MatrixMultiply) and transposed(node.left) is not None
            return is_product or are_totals(node.left, node.right)
        if isinstance(node, cst.Comparison):
            return are_totals(node.left, *(each.comparator for each in node.comparisons))
        if isinstance(node, cst.Subscript):
            return are_totals(node.value)
        if isinstance(node, cst.UnaryOperation):
            return are_totals(node.expression)
        if isinstance(node, (cst.List, cst.Tuple)):
            return are_totals(*(element.value for element in node.elements))
        if isinstance(node, cst.Name):
            scopes = self.flow.scopes(file)
            changes = [line for line in scopes.nodes(node, cst.AugAssign) if dotted(line.target) == node.value]
            if any(self._is_counted(line, file) for line in changes):
                return True
            return are_totals(*scopes.assigned(node), *(line.value for line in changes))
        return False

    def _is_counted(self, line: cst.AugAssign, file: SourceFile) -> bool:
        """Return whether a line counts what it finds in a batch: it adds a fixed number where a condition holds."""
        return self._values.depends(line, file) and self._is_fixed(line.value, file)

    def _is_fixed(self, node: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether a number is the same on each rank, or is looked up in a table: ``weights.get(label, 1.0)``."""
        if not self.differs(node, file):
            return True
        if isinstance(node, cst.Name):
            values = self.flow.scopes(file).assigned(node)
            return bool(values) and all(value is not node and self._is_looked_up(value, file) for value in values)
        return self._is_looked_up(node, file)

    def _is_looked_up(self, node: cst.BaseExpression, file: SourceFile) -> bool:
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            return node.func.attr.value == "get"
        return isinstance(node, cst.Subscript) and not self.differs(node.value, file)

    def reduces(self, call: cst.Call, file: SourceFile) -> bool:
        """Return whether a call makes one number, or one a feature, of what the samples of a batch have."""
        name = last_name(call.func) or called_name(call)
        if name not in MEANS | SUMS | SPREADS | EXTREMES:
            return False
        operand, dims = self._operand(call, file)
        if operand is None or not self.differs(operand, file) or self._is_of_sample(operand, file):
            return False
        is_over_samples = self._is_first(dims, file) if dims is not None else name not in _NEEDS_DIM
        if dims is not None and isinstance(operand, cst.Call) and called_name(operand) == "stack":
            return False  # over the elements of the list
        return is_over_samples and not self.is_total(operand, file)

    def operand(self, call: cst.Call, file: SourceFile) -> cst.BaseExpression | None:
        """Return what a call reduces: its first argument, or what has the method."""
        return self._operand(call, file)[0]

    def _operand(self, call: cst.Call, file: SourceFile) -> tuple[cst.BaseExpression | None, cst.BaseExpression | None]:
        """Return what a call reduces, and over which dimensions; None for all."""
        is_method = isinstance(call.func, cst.Attribute) and not of_kind(
            self.flow.values(call.func, file), Kind.EXTERNAL
        )
        if isinstance(call.func, cst.Attribute) and is_method:
            operand, first = call.func.value, 0
        elif call.args and (dotted(call.func) or "").startswith(("torch.", "F.", "np.", "numpy.")):
            operand, first = call.args[0].value, 1
        else:
            return None, None
        position = first + _DIM.get(last_name(call.func) or called_name(call), 0)
        dims = argument(call, position, "dim") or argument(call, None, "axis")
        return operand, dims.value if dims is not None else None

    def _is_first(self, dims: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether dimensions, as written there or behind a name, have that of samples among them."""
        written = [dims]
        if isinstance(dims, (cst.Name, cst.Attribute)) and dotted(dims) != "None":
            written = self.flow.scopes(file).assigned(dims)
        ways = [side for each in written for side in _sides(each)]
        if len({len(elements(way)) for way in ways}) > 1:
            return True  # a condition adds a dimension: that of samples, as in a Dice loss over batches
        return any(dotted(way) == "None" or any(number(p) == 0 for p in elements(way)) for way in ways)

    def _is_of_sample(self, operand: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether something is of one sample, as an index or a loop over those of a batch gives it."""
        for node in walk(operand):
            index = single_index(node)
            if index is not None and self._is_number(index, file):
                return True
            if isinstance(node, cst.Name):
                loops = [loop for loop in file.ancestors(node) if isinstance(loop, (cst.For, cst.CompFor))]
                around = [loop for loop in loops if node.value in names_in(loop.target)]
                if any(not self._is_of_batches(loop.iter, file) for loop in around):
                    return True
        return False

    def _is_number(self, index: cst.BaseExpression, file: SourceFile) -> bool:
        return isinstance(index, (cst.Integer, cst.Name)) and not self.differs(index, file)

    def _is_of_batches(self, over: cst.BaseExpression, file: SourceFile) -> bool:
        parts = [part for part in walk(over) if isinstance(part, (cst.Name, cst.Attribute, cst.Call))]
        return any(loaders_of(part, file, self.flow) for part in parts)


def _sides(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return what a condition chooses between; an expression without one as it is."""
    return [*_sides(node.body), *_sides(node.orelse)] if isinstance(node, cst.IfExp) else [node]


def transposed(node: cst.BaseExpression, is_of_each: bool = False) -> cst.BaseExpression | None:
    """Return the matrix that an expression transposes, or the tensor of matrices; None where it does not."""
    if isinstance(node, cst.Attribute) and node.attr.value == ("mT" if is_of_each else "T"):
        return node.value
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
        return None
    given = [arg.value for arg in node.args]
    if dotted(node.func.value) != "torch":
        given = [node.func.value, *given]
    orders = (_EACH_TRANSPOSED if is_of_each else _TRANSPOSED).get(node.func.attr.value, ())
    return given[0] if given and tuple(map(code, given[1:])) in orders else None
