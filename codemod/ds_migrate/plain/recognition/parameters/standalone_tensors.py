"""Tensors that an optimizer holds beside modules: a learned temperature, prompt, image or weight of a loss."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.lookup.options import OPTION_MAKERS
from ds_migrate.plain.dataflow.values import NOTHING, Kind, Value, Values, of_kind
from ds_migrate.syntax.nodes import argument, last_name, receiver, targets, walk
from ds_migrate.syntax.source import SourceFile

_PARAMETERS = frozenset({"torch.nn.Parameter", "torch.nn.parameter.Parameter"})
_OF_NEW_MEMORY = frozenset(
    {f"torch.{name}" for name in ("tensor", "zeros", "ones", "rand", "randn", "full", "empty", "linspace", "eye")}
    | {f"torch.{name}_like" for name in ("zeros", "ones", "rand", "randn", "full", "empty")}
)
TENSOR_FACTORIES = (
    _OF_NEW_MEMORY
    | _PARAMETERS
    | {"torch.autograd.Variable", "torch.from_numpy", "torch.FloatTensor", "torch.Tensor", "torch.as_tensor"}
)
_SAME_MEMORY = frozenset(
    {"detach", "detach_", "to", "float", "double", "cuda", "cpu", "requires_grad_", "contiguous"}
    | {"flatten", "reshape", "view", "squeeze", "unsqueeze"}
)
_REGISTER = frozenset({"register_parameter", "ParameterList", "ParameterDict", "setattr", "append", "extend", "insert"})


def are_standalone(values: Values, flow: Flow) -> bool:
    """Return whether values are tensors that the program makes, and that become parameters of no module."""
    return bool(values) and all(_is_made_by_torch(v, flow) and not _may_be_in_module(v, flow) for v in values)


def listed_tensors(values: Values, flow: Flow) -> Values:
    """Return the tensors of a list or dict; nothing where it is none of these, or holds anything else."""
    containers = of_kind(values, Kind.SEQUENCE, Kind.MAPPING)
    items = frozenset(item for container in containers for item in flow.items_of(container))
    return items if values and values == containers and are_standalone(items, flow) else NOTHING


def is_own_parameter(node: cst.Attribute, file: SourceFile, flow: Flow) -> bool:
    """Return whether an attribute is a ``Parameter`` of the module in whose methods it is."""
    values, owners = flow.values(node, file), flow.values(node.value, file)
    is_kept = bool(values) and all(value.kind is Kind.OBJECT and value.name in _PARAMETERS for value in values)
    return is_kept and bool(owners) and all(o.kind is Kind.INSTANCE and _may_be_module(o, flow) for o in owners)


def _is_made_by_torch(value: Value, flow: Flow, around: Values = NOTHING) -> bool:
    """Return whether a call makes a tensor with separate memory: not one that is a view of a module's parameter.

    ``around``: the tensors that are made of this one.
    """
    if value.kind is not Kind.OBJECT or value in around:
        return False
    file, call = flow.file(value), flow.node(value)
    if not isinstance(call, cst.Call):
        return False
    if receiver(call, "clone") is not None and not call.args:
        return True
    if (owner := receiver(call, *_SAME_MEMORY)) is not None:
        owners = flow.values(owner, file) - {value}
        return bool(owners) and all(_is_made_by_torch(one, flow, around | {value}) for one in owners)
    makers = flow.values(call.func, file)
    if not makers or not all(v.kind is Kind.EXTERNAL and v.name in TENSOR_FACTORIES for v in makers):
        return False
    data = argument(call, 0, "data")
    if data is None or all(maker.name in _OF_NEW_MEMORY for maker in makers):
        return True
    held = flow.values(data.value, file) - {value}
    if held and all(_is_made_by_torch(one, flow, around | {value}) for one in held):
        return True
    return not any(
        _is_of_module(part, flow) for n in walk(data.value) for part in of_kind(flow.values(n, file), Kind.PART)
    )


def _is_of_module(part: Value, flow: Flow) -> bool:
    """Return whether a part may be that of a module: not one of options, or of a tensor or array that a call makes."""
    known = flow.node_of(part.key)
    makers = (
        flow.values(known[1].func, known[0]) if known is not None and isinstance(known[1], cst.Call) else frozenset()
    )
    return not makers or not all(
        v.name in OPTION_MAKERS
        or (v.kind is Kind.EXTERNAL and (v.name in TENSOR_FACTORIES or v.name.startswith("numpy.")))
        for v in makers
    )


def _may_be_in_module(value: Value, flow: Flow) -> bool:
    """Return whether a tensor is kept by a module, or by what may be one, which makes it a parameter of that.

    An attribute of a module that is no ``Parameter`` is none of it.
    """
    is_registered = not _is_plain(value, flow)
    for file in flow.files.values():
        for node in file.nodes(cst.Assign, cst.AnnAssign):
            if is_registered and node.value is not None and value in flow.values(node.value, file):
                owners = (v for t in targets(node) if isinstance(t, cst.Attribute) for v in flow.values(t.value, file))
                if any(_may_be_module(owner, flow) for owner in owners):
                    return True
        for call in file.nodes(cst.Call):
            if last_name(call.func) in _REGISTER and value in _given(call, file, flow):
                return True
    return False


def _is_plain(value: Value, flow: Flow) -> bool:
    """Return whether a call of torch makes a tensor that is no ``Parameter``."""
    call = flow.node(value)
    makers = flow.values(call.func, flow.file(value)) if isinstance(call, cst.Call) else frozenset()
    return bool(makers) and all(v.name in TENSOR_FACTORIES and not v.name.endswith("Parameter") for v in makers)


def _may_be_module(owner: Value, flow: Flow) -> bool:
    if owner.kind in (Kind.INSTANCE, Kind.CLASS):
        known = flow.class_of(owner.key)
        return known is not None and flow.classes.is_module(known[1], known[0])
    return owner.kind in (Kind.MODULE, Kind.OBJECT, Kind.PART)


def _given(call: cst.Call, file: SourceFile, flow: Flow) -> Iterator[Value]:
    """Yield what a call of a method that registers parameters is given; a list that an optimizer gets is none."""
    owner = call.func.value if isinstance(call.func, cst.Attribute) else None
    if owner is not None and of_kind(flow.values(owner, file), Kind.SEQUENCE):
        return
    for arg in call.args:
        for node in walk(arg.value):
            if isinstance(node, (cst.Name, cst.Attribute)):
                yield from flow.values(node, file)
