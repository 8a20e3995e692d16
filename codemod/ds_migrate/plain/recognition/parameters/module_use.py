"""The parameters that a module's forward pass uses, as far as its class shows."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, Value, of_kind
from ds_migrate.syntax.nodes import dotted, last_name, targets
from ds_migrate.syntax.source import SourceFile

_CHOICES = (
    cst.If, cst.IfExp, cst.Try, cst.For, cst.While, cst.With, cst.BooleanOperation, cst.Lambda, cst.ListComp, cst.Dict,
    cst.Tuple,
)  # fmt: skip
_HIDDEN = frozenset({"register_parameter", "add_module", "register_module", "setattr", "detach", "requires_grad_"})


def uses_all_parameters(module: Value, flow: Flow, depth: int = 8) -> bool:
    """Return whether each forward pass of a module certainly uses all of its parameters.

    That holds for layers of ``torch.nn``, for ``Sequential`` of such, and for classes of the program whose ``forward``
    uses each attribute, without a condition, and returns one tensor.
    """
    if depth == 0 or module.kind is not Kind.MODULE:
        return module.kind is Kind.OBJECT and _is_layer(module, flow, depth)
    found = flow.class_of(module.of)
    if found is None:
        return False
    file, node = found
    if [dotted(base.value) for base in node.bases] not in _BASES:
        return False
    forward, init = _method(node, "forward"), _method(node, "__init__")
    if forward is None or init is None or file.nodes(*_CHOICES, below=forward):
        return False
    hides = any(last_name(call.func) in _HIDDEN for call in file.nodes(cst.Call, below=node))
    if hides or len(file.nodes(cst.Return, below=forward)) != 1:
        return False
    used = {n.attr.value for n in file.nodes(cst.Attribute, below=forward) if dotted(n.value) == "self"}
    used -= {n.attr.value for n in file.nodes(cst.Attribute, below=forward) if _is_partial(n, file)}
    others = [m for m in node.body.body if isinstance(m, cst.FunctionDef) and m not in (forward, init)]
    if any(dotted(t.value) == "self" for m in others for t in _attributes_set(file, m)):
        return False
    return all(
        dotted(attribute.value) == "self" and _is_covered(attribute, used, file, flow, depth)
        for attribute in _attributes_set(file, init)
    )


_BASES: list[list[str | None]] = [["nn.Module"], ["torch.nn.Module"], ["Module"]]


def _is_covered(node: cst.Attribute, used: set[str], file: SourceFile, flow: Flow, depth: int) -> bool:
    """Return whether an attribute holds no parameters, or the forward pass uses all that it holds."""
    line = next(a for a in file.ancestors(node) if isinstance(a, (cst.Assign, cst.AnnAssign, cst.AugAssign)))
    if line.value is None or isinstance(line, cst.AugAssign):
        return False
    if isinstance(line.value, (cst.Integer, cst.Float, cst.SimpleString, cst.Name)):
        return not of_kind(flow.values(line.value, file), Kind.MODULE, Kind.OBJECT)
    values = of_kind(flow.values(line.value, file), Kind.MODULE, Kind.OBJECT)
    return node.attr.value in used and bool(values) and all(uses_all_parameters(v, flow, depth - 1) for v in values)


def _is_layer(module: Value, flow: Flow, depth: int) -> bool:
    """Return whether a value is a layer of ``torch.nn``, or a ``Sequential`` of modules that use all parameters."""
    file, call = flow.file(module), flow.node(module)
    is_known = module.name.startswith("torch.nn.") and not module.name.endswith(".AdaptiveLogSoftmaxWithLoss")
    if not is_known or not isinstance(call, cst.Call):
        return False
    if not module.name.endswith((".Sequential", ".ModuleList", ".ModuleDict")):
        return True
    parts = [of_kind(flow.values(arg.value, file), Kind.MODULE, Kind.OBJECT) for arg in call.args if not arg.star]
    return (
        module.name.endswith(".Sequential") and len(parts) == len(call.args)
        and all(held and all(uses_all_parameters(v, flow, depth - 1) for v in held) for held in parts)
    )  # fmt: skip


def _is_partial(node: cst.Attribute, file: SourceFile) -> bool:
    """Return whether only a part of an attribute is used: a layer of it, or its weight."""
    around = file.parent(node)
    return dotted(node.value) == "self" and isinstance(around, (cst.Attribute, cst.Subscript))


def _method(node: cst.ClassDef, name: str) -> cst.FunctionDef | None:
    found = [m for m in node.body.body if isinstance(m, cst.FunctionDef) and m.name.value == name]
    return found[-1] if found else None  # the others are for @overload


def _attributes_set(file: SourceFile, function: cst.FunctionDef) -> list[cst.Attribute]:
    lines = file.nodes(cst.Assign, cst.AnnAssign, cst.AugAssign, below=function)
    return [target for line in lines for target in targets(line) if isinstance(target, cst.Attribute)]
