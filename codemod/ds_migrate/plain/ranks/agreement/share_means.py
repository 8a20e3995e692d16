"""Numbers whose mean over ranks is what the whole batch gives: means of a batch, and what is linear in them."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.rank_values import RankValues
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.scopes import names_in
from ds_migrate.plain.dataflow.values import Kind, Value
from ds_migrate.syntax.nodes import called_name, dotted, operands, parameters, targets
from ds_migrate.syntax.source import SourceFile

_DEPTH = 16
_MOVES = frozenset(
    {
        "permute", "transpose", "contiguous", "view", "view_as", "reshape", "flatten", "squeeze", "unsqueeze", "expand",
        "expand_as", "clone", "detach", "float", "double", "to", "type_as", "cpu", "cuda", "item",
    }
)  # fmt: skip
_OF_EACH = _MOVES | {
    "abs",
    "square",
    "pow",
    "exp",
    "log",
    "sqrt",
    "relu",
    "gelu",
    "silu",
    "tanh",
    "sigmoid",
    "softplus",
    "leaky_relu",
}
# Layers that make an output of each sample alone, and draw nothing.
_LAYERS = frozenset(
    {
        "Linear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "Embedding",
        "LayerNorm", "GroupNorm", "ReLU", "LeakyReLU", "GELU", "SiLU", "ELU", "Tanh", "Sigmoid", "Softplus", "Identity",
        "Flatten", "MaxPool1d", "MaxPool2d", "AvgPool1d", "AvgPool2d", "AdaptiveAvgPool2d",
    }
)  # fmt: skip


class ShareMeans:
    """The numbers of a program that are made of means of a batch."""

    def __init__(self, flow: Flow, values: RankValues) -> None:
        self._flow = flow
        self._values = values

    def is_mean(self, node: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether the mean over ranks of a number is what the whole batch gives, as shares are equally large."""
        return self._is_made(node, file, _DEPTH, is_mean=True)

    def _is_made(self, node: cst.BaseExpression, file: SourceFile, depth: int, *, is_mean: bool) -> bool:
        """Return whether an expression is linear in means of a batch; else, made of each sample of a batch alone."""
        if not self._values.differs(node, file):
            return True
        if depth == 0:
            return False

        def are_made(*parts: cst.BaseExpression, is_mean: bool = is_mean) -> bool:
            return all(self._is_made(part, file, depth - 1, is_mean=is_mean) for part in parts)

        if isinstance(node, cst.Call):
            operand, name = self._operand(node, file), called_name(node)
            if operand is None:
                return False
            if is_mean:
                return are_made(operand, is_mean=name != "mean") if name in (*_MOVES, "mean") else False
            return (name in _OF_EACH or self._is_layer(node, file)) and are_made(operand)
        if isinstance(node, cst.BinaryOperation):
            return (not is_mean or self._is_linear(node, file)) and are_made(node.left, node.right)
        if isinstance(node, cst.UnaryOperation):
            return (not is_mean or isinstance(node.operator, cst.Minus)) and are_made(node.expression)
        if isinstance(node, cst.Subscript) and is_mean:
            return are_made(node.value)
        assigned = self._assigned(node, file)
        return (bool(assigned) and are_made(*assigned)) or (not is_mean and self._is_batch(node, file))

    def _is_linear(self, node: cst.BinaryOperation, file: SourceFile) -> bool:
        """Return whether an operation is linear in what differs by rank."""
        left, right = (self._values.differs(side, file) for side in (node.left, node.right))
        is_sum = isinstance(node.operator, (cst.Add, cst.Subtract))
        is_product = isinstance(node.operator, cst.Multiply) and not (left and right)
        return is_sum or is_product or (isinstance(node.operator, cst.Divide) and not right)

    def _is_layer(self, call: cst.Call, file: SourceFile) -> bool:
        """Return whether a call is of layers of torch that make an output of each sample alone."""
        modules = self._flow.values(call.func, file)
        return bool(modules) and all(m.kind in (Kind.MODULE, Kind.OBJECT) and self._is_made_layer(m) for m in modules)

    def _is_made_layer(self, module: Value) -> bool:
        maker, file = self._flow.node(module), self._flow.file(module)
        return isinstance(maker, cst.Call) and self._makes_layer(maker, file)

    def _makes_layer(self, maker: cst.Call, file: SourceFile) -> bool:
        names = [value.name for value in self._flow.values(maker.func, file)]
        if names == ["torch.nn.Sequential"]:
            parts = [arg.value for arg in maker.args]
            return bool(parts) and all(isinstance(part, cst.Call) and self._makes_layer(part, file) for part in parts)
        return bool(names) and all(n.startswith("torch.nn.") and n.rpartition(".")[2] in _LAYERS for n in names)

    def _operand(self, call: cst.Call, file: SourceFile) -> cst.BaseExpression | None:
        """Return the one argument of a call that differs by rank, or the object whose method it is."""
        parts = [part for part in operands(call) if self._values.differs(part, file)]
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
