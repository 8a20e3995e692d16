"""Modules that libraries make, and lists and dicts of modules that have no names themselves."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import NOTHING, Kind, Value, Values, of_kind
from ds_migrate.syntax.nodes import dotted

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
