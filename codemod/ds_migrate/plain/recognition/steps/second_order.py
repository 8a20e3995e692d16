"""The ``create_graph`` of a backward pass: off by its value, or on for optimizers of second order alone."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.torch_names import OPTIMIZER_FACTORIES
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.syntax.nodes import dotted, parameter, walk
from ds_migrate.syntax.source import SourceFile

_MARK = "is_second_order"  # the attribute by which timm's Adahessian asks for create_graph
_LIBRARIES = ("torch.optim.", "timm.optim.", "apex.optimizers.")
_UNKNOWN = (*sorted(OPTIMIZER_FACTORIES), "Adahessian", "create_optimizer_with_params")
_DEPTH = 6


class GraphRequests:
    """The values that arguments of ``backward()`` have in the calls of a program."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow

    def is_off(self, value: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether an argument is False or None, also through parameters and variables."""
        return self._is_off(value, file, False, _DEPTH)

    def is_of_second_order(self, value: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether an argument is on for optimizers with the attribute ``is_second_order``, and else off."""
        return self._is_off(value, file, True, _DEPTH)

    def _is_off(self, value: cst.BaseExpression, file: SourceFile, allows_mark: bool, depth: int) -> bool:
        if dotted(value) in ("False", "None"):
            return True
        if self._asks_optimizer(value, file):
            return allows_mark or self._is_first_order(value, file)
        if not isinstance(value, cst.Name) or depth == 0:
            return False
        function = self._flow.scopes(file).owner(value.value, value)
        assigned = file.values_of({value.value}, function)
        param = parameter(function, value.value) if isinstance(function, cst.FunctionDef) else None
        if param is None or not isinstance(function, cst.FunctionDef):
            return bool(assigned) and all(self._is_off(one, file, allows_mark, depth - 1) for one in assigned)
        calls = self._flow.callers.of(function)
        given = [(caller, self._flow.given(call, function, value.value, caller)) for caller, call in calls]
        found = [(file, param.default) if arg is None else (caller, arg.value) for caller, arg in given]
        return bool(found) and not assigned and all(
            one is not None and self._is_off(one, where, allows_mark, depth - 1) for where, one in found
        )  # fmt: skip

    def _asks_optimizer(self, value: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether an expression is ``hasattr(optimizer, "is_second_order") and optimizer.is_second_order``."""
        if isinstance(value, cst.BooleanOperation) and isinstance(value.operator, cst.And):
            return self._asks_optimizer(value.left, file) or self._asks_optimizer(value.right, file)
        if isinstance(value, cst.Call):
            is_asked = dotted(value.func) in ("hasattr", "getattr") and len(value.args) > 1
            name = value.args[1].value if is_asked else None
            has_default = dotted(value.func) == "hasattr" or (
                len(value.args) > 2 and dotted(value.args[2].value) == "False"
            )
            return isinstance(name, cst.SimpleString) and name.evaluated_value == _MARK and has_default
        return isinstance(value, cst.Attribute) and value.attr.value == _MARK

    def _is_first_order(self, value: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether the optimizers that an expression asks are all of classes that do not have the attribute."""
        names = [node for node in walk(value) if isinstance(node, (cst.Name, cst.Attribute))]
        held = frozenset(v for node in names for v in of_kind(self._flow.values(node, file), Kind.OPTIMIZER))
        return bool(held) and all(
            one.name.startswith(_LIBRARIES) and one.name.rpartition(".")[2] not in _UNKNOWN for one in held
        )
