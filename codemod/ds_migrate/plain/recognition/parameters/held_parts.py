"""Names and attributes that hold a part of a module: ``net = model.encoder``."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import NOTHING, Kind, Values, are_all, of_kind
from ds_migrate.plain.recognition.parameters.module_lists import may_be_module
from ds_migrate.syntax.nodes import dotted, targets
from ds_migrate.syntax.source import SourceFile


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
