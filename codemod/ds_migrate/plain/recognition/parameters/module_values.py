"""Values that are modules: made by libraries, in lists and dicts without names themselves, or parts of others."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import NOTHING, Kind, Value, Values, are_all, of_kind
from ds_migrate.syntax.nodes import dotted, targets
from ds_migrate.syntax.source import SourceFile

ASKED_OF_MODULES = ("parameters", "named_parameters", "modules", "named_modules", "children", "named_children")
_MODULE_LISTS = frozenset({"torch.nn.ModuleList", "torch.nn.ModuleDict", "torch.nn.Sequential"})


def may_be_module(values: Values, flow: Flow) -> bool:
    """Return whether values may be a module: the program asks what a library has made for parameters or modules."""
    made = of_kind(values, Kind.OBJECT)
    if of_kind(values, Kind.MODULE) or (values and all(value.name in _MODULE_LISTS for value in values)):
        return True
    return bool(made) and any(
        flow.values(used.value, file) & made
        for file in flow.files.values()
        for name in ASKED_OF_MODULES
        for used in file.attributes_by_name.get(name, ())
    )


def is_layer_of_torch(value: Value) -> bool:
    """Return whether a class of ``torch.nn`` makes a value: not ``Parameter``, which makes a tensor."""
    package, _, name = value.name.rpartition(".")
    return value.kind is Kind.OBJECT and package == "torch.nn" and name[:1].isupper() and name != "Parameter"


def listed_modules(values: Values, flow: Flow) -> Values:
    """Return the modules of a list or dict; nothing where it is none of these, or each has a name in it."""
    if len(values) != 1 or values != of_kind(values, Kind.SEQUENCE, Kind.MAPPING):
        return NOTHING
    (container,) = values
    display, items = flow.node(container), flow.items_of(container)
    elements = display.elements if isinstance(display, (cst.List, cst.Tuple)) else ()
    has_names = bool(elements) and all(dotted(element.value) is not None for element in elements)
    are_modules = all(may_be_module(frozenset({item}), flow) for item in items)
    return items if are_modules and not has_names else NOTHING


def part_held(node: cst.BaseExpression, file: SourceFile, flow: Flow) -> cst.Attribute | None:
    """Return the part of a module that a name holds, where its function assigns that once: ``net = model.encoder``."""
    values, name = flow.values(node, file), dotted(node)
    is_name = isinstance(node, cst.Name) or (isinstance(node, cst.Attribute) and keeps_parts(node, file, flow))
    if not is_name or name is None or not are_all(values, Kind.PART):
        return None
    function = file.function(node)
    lines = file.nodes(cst.Assign, below=function if function is not None else file.module)
    held = [line.value for line in lines if name in map(dotted, targets(line)) and file.function(line) is function]
    part = held[0] if len(held) == 1 else None
    if not isinstance(part, cst.Attribute):
        return None
    whole: cst.BaseExpression = part
    while isinstance(whole, cst.Attribute) and of_kind(flow.values(whole, file), Kind.PART):
        whole = whole.value
    if makes_whole(part, file, flow) or may_be_module(flow.values(whole, file), flow):
        return part
    return part if are_called(flow.values(part, file), flow) else None


def are_called(parts: Values, flow: Flow) -> bool:
    """Return whether the parts of an object are called themselves, as a pipeline's ``unet``: they are modules."""
    return bool(parts) and flow.once(_called_values) >= parts


def _called_values(flow: Flow) -> Values:
    return frozenset(value for file, call in flow.nodes(cst.Call) for value in flow.values(call.func, file))


def keeps_parts(node: cst.Attribute | cst.Subscript, file: SourceFile, flow: Flow) -> bool:
    """Return whether a node is an attribute of an object that is no module, which may keep a part of one."""
    owners = flow.values(node.value, file)
    classes = (flow.class_of(owner.key) for owner in owners)
    return are_all(owners, Kind.INSTANCE) and not any(
        known is not None and flow.classes.is_module(known[1], known[0]) for known in classes
    )


def makes_whole(part: cst.Attribute, file: SourceFile, flow: Flow) -> bool:
    """Return whether a part is taken of a module that is made for it: ``smp.Unet().encoder``."""
    made = flow.values(part.value, file) if isinstance(part.value, cst.Call) else NOTHING
    return bool(made) and all(
        value.kind in (Kind.MODULE, Kind.OBJECT) and flow.node(value) is part.value for value in made
    )
