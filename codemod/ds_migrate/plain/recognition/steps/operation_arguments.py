"""The arguments of ``backward()`` and ``step()``: those that no call gives anything, and ``create_graph``."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.torch_names import OPTIMIZER_FACTORIES
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.syntax.nodes import dotted, is_literal, parameters, walk
from ds_migrate.syntax.source import SourceFile

_DEPTH = 4  # functions that hand them on


def is_empty(node: cst.BaseExpression, file: SourceFile, flow: Flow, depth: int = _DEPTH) -> bool:
    """Return whether an argument is None, or a parameter of its function to which no call gives anything."""
    if is_literal(node, "None"):
        return True
    function = file.function(node) if isinstance(node, cst.Name) else None
    if function is None or function.decorators or not depth or not isinstance(node, cst.Name):
        return False
    stars = [p for p in (function.params.star_arg, function.params.star_kwarg) if isinstance(p, cst.Param)]
    optional = [p for p in parameters(function) if p.default is not None and is_literal(p.default, "None")]
    param = next((p for p in (*optional, *stars) if p.name.value == node.value), None)
    names = (n for n in walk(function.body) if isinstance(n, cst.Name) and n.value == node.value and n is not node)
    if param is None or any(param in stars or isinstance(file.parent(n), cst.AssignTarget) for n in names):
        return False
    owners = {(id(function), node.value), id(param)}  # an item of a star is a variable of it
    calls = flow.callers.of(function)
    given = [
        (value, caller)
        for caller, call in calls
        for value in (
            *(arg.value for arg in call.args if arg.star),
            *(value for variable, value in flow.passed(call, caller) if owners & {variable, variable[0]}),
        )
    ]
    return bool(calls) and all(is_empty(value, caller, flow, depth - 1) for value, caller in given)


_OFF = ("False", "None")
_MARK = "is_second_order"  # the attribute by which timm's Adahessian asks for create_graph
_LIBRARIES = ("torch.optim.", "timm.optim.", "apex.optimizers.")
_UNKNOWN = (*sorted(OPTIMIZER_FACTORIES), "Adahessian", "create_optimizer_with_params")


def is_off(value: cst.BaseExpression, file: SourceFile, flow: Flow) -> bool:
    """Return whether an argument is False or None, also through parameters and variables, or as an optimizer is."""
    ends = flow.callers.ends(value, file)
    return all(dotted(end) in _OFF or (_asks_optimizer(end) and _is_first_order(end, at, flow)) for end, at in ends)


def is_of_second_order(value: cst.BaseExpression, file: SourceFile, flow: Flow) -> bool:
    """Return whether an argument is on for optimizers with the attribute ``is_second_order``, and else off."""
    ends = (end for end, _ in flow.callers.ends(value, file))
    return all(dotted(end) in _OFF or _asks_optimizer(end) for end in ends)


def _asks_optimizer(value: cst.BaseExpression) -> bool:
    """Return whether an expression is ``hasattr(optimizer, "is_second_order") and optimizer.is_second_order``."""
    if isinstance(value, cst.BooleanOperation) and isinstance(value.operator, cst.And):
        return _asks_optimizer(value.left) or _asks_optimizer(value.right)
    if isinstance(value, cst.Call):
        name = value.args[1].value if dotted(value.func) in ("hasattr", "getattr") and len(value.args) > 1 else None
        return isinstance(name, cst.SimpleString) and name.evaluated_value == _MARK
    return isinstance(value, cst.Attribute) and value.attr.value == _MARK


def _is_first_order(value: cst.BaseExpression, file: SourceFile, flow: Flow) -> bool:
    """Return whether the optimizers that an expression asks are all of classes that do not have the attribute."""
    names = [node for node in walk(value) if isinstance(node, (cst.Name, cst.Attribute))]
    held = frozenset(v for node in names for v in of_kind(flow.values(node, file), Kind.OPTIMIZER))
    return bool(held) and all(
        one.name.startswith(_LIBRARIES) and one.name.rpartition(".")[2] not in _UNKNOWN for one in held
    )
