"""The modules whose parameters an optimizer is given."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import libcst as cst

from ds_migrate.plain.dataflow.copies import Call
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, Value, Values, of_kind
from ds_migrate.plain.recognition.containers import item_at
from ds_migrate.plain.recognition.parameter_filters import Filters
from ds_migrate.plain.recognition.parameter_sources import (
    UnknownOwnerError,
    iterated,
    replaces,
    shown,
    sources_of_name,
    text_of,
)
from ds_migrate.plain.recognition.standalone_tensors import are_standalone
from ds_migrate.syntax.nodes import argument, dotted, targets, walk
from ds_migrate.syntax.one_line import expression_text
from ds_migrate.syntax.source import SourceFile

_MODULES = (Kind.MODULE, Kind.OBJECT, Kind.INSTANCE)
_CONTAINERS = frozenset({"list", "tuple", "filter", "chain", "iter", "set", "from_iterable", "sorted", "reversed"})
_FREEZES = re.compile(rb"requires_grad(_\s*\(|\s*=[^=])")
_ASKED_OF_MODULES = ("parameters", "named_parameters", "modules", "named_modules", "children", "named_children")
_NAMESPACES = frozenset({"types", "argparse", "easydict", "addict", "munch", "box", "omegaconf", "ml_collections"})
_DEPTH = 24


@dataclass
class Owners:
    """Modules by the text of their expressions. ``is_partial``: the optimizer may hold a part of their parameters.

    ``tensors`` are in no module.
    """

    values: dict[str, Values] = field(default_factory=dict)
    tensors: dict[str, Values] = field(default_factory=dict)
    is_partial: bool = False
    filters: Filters = field(default_factory=Filters)
    collected: list[cst.CSTNode] = field(default_factory=list)  # what names hold: one may be made of itself
    parts: dict[str, tuple[str, Value]] = field(default_factory=dict)  # that are named exactly, with their wholes
    has_wholes: bool = False
    calls: Sequence[Call] = ()  # that the optimizer has come through, the innermost first
    only_calls: Sequence[Call] = ()  # of the functions around it that are called at one place, the innermost first
    around: Sequence[cst.CSTNode] = ()  # what the optimizer is made in, the innermost first


def owners_of(
    maker: cst.Call, file: SourceFile, flow: Flow, calls: Sequence[Call] = (), only_calls: Sequence[Call] = ()
) -> Owners:
    """Return the modules whose parameters the call that makes an optimizer is given.

    ``calls`` are those of the functions around it that return the optimizer, the innermost first; ``only_calls`` those
    of functions around it that are called at one place.

    Raises:
        UnknownOwnerError: some of the parameters belong to none, or cannot be followed.
    """
    made = flow.construction(maker, file)
    given = (
        argument(made, 0, "params")
        or argument(made, None, "params")
        or argument(made, None, "model")
        or argument(made, None, "model_or_params")
    )
    if given is None or given.star:
        raise UnknownOwnerError("it is given no parameters that can be followed")
    owners = Owners(calls=calls, only_calls=only_calls, around=list(file.ancestors(maker)))
    owners.filters.is_frozen_fixed = not any(_FREEZES.search(other.data) for other in flow.files.values())
    modules = [arg.value for arg in made.args if not arg.star and of_kind(flow.values(arg.value, file), Kind.MODULE)]
    if modules:  # as in create_optimizer(args, model)
        given_nodes: list[cst.BaseExpression] = modules
        owners.is_partial = True
    else:
        given_nodes = [given.value]
    for node in given_nodes:
        _collect(node, file, flow, owners, _DEPTH)
    if not owners.values and not owners.tensors:
        raise UnknownOwnerError("it is given parameters of no module that can be followed")
    owners.is_partial |= owners.filters.is_partial
    return owners


def owners_of_group(call: cst.Call, file: SourceFile, flow: Flow) -> Owners:
    """Return the modules whose parameters ``add_param_group()`` is given.

    Raises:
        UnknownOwnerError: some of the parameters belong to none, or cannot be followed.
    """
    owners, group = Owners(), argument(call, 0, "param_group")
    if group is None or group.star:
        raise UnknownOwnerError("add_param_group() is given no parameters that can be followed")
    _collect(group.value, file, flow, owners, _DEPTH)
    return owners


def _collect(node: cst.CSTNode, file: SourceFile, flow: Flow, owners: Owners, depth: int) -> None:
    if depth == 0:
        raise UnknownOwnerError(f"{shown(node)} cannot be followed to a module")
    deeper = depth - 1
    if isinstance(node, cst.Call):
        _of_call(node, file, flow, owners, deeper)
    elif isinstance(node, (cst.ListComp, cst.GeneratorExp, cst.SetComp, cst.DictComp)):
        item = node.value if isinstance(node, cst.DictComp) else node.elt
        if isinstance(item, cst.Subscript):  # of what holds them by name
            owners.is_partial = True
            _collect(item.value, file, flow, owners, deeper)
        else:
            owners.filters.add(node, block=id(file.parent(file.statement(node))))
            _collect(iterated(node.for_in, item), file, flow, owners, deeper)
    elif isinstance(node, (cst.List, cst.Tuple)):
        for element in node.elements:
            _collect(element.value, file, flow, owners, deeper)
    elif isinstance(node, cst.Dict):
        params = [e.value for e in node.elements if isinstance(e, cst.DictElement) and text_of(e.key) == "params"]
        if all(isinstance(e.value, cst.List) and not e.value.elements for e in node.elements):
            return  # lists that are filled later
        if not params:
            raise UnknownOwnerError("a parameter group has no params")
        _collect(params[0], file, flow, owners, deeper)
    elif isinstance(node, cst.BinaryOperation):
        _collect(node.left, file, flow, owners, deeper)
        _collect(node.right, file, flow, owners, deeper)
    elif isinstance(node, cst.IfExp):
        owners.is_partial = True
        _collect(node.body, file, flow, owners, deeper)
        _collect(node.orelse, file, flow, owners, deeper)
    elif isinstance(node, (cst.Name, cst.Attribute)):
        _of_name(node, file, flow, owners, deeper)
    elif isinstance(node, cst.Subscript) and isinstance(node.value, (cst.Name, cst.Attribute)):
        owners.is_partial = True  # one list of several
        _collect(node.value, file, flow, owners, deeper)
    else:
        raise UnknownOwnerError(f"{shown(node)} cannot be followed to a module")


def _of_call(node: cst.Call, file: SourceFile, flow: Flow, owners: Owners, depth: int) -> None:
    name = node.func.attr.value if isinstance(node.func, cst.Attribute) else dotted(node.func) or ""
    params = argument(node, 0, "params")
    if params is not None and not params.star and of_kind(flow.values(node, file), Kind.OPTIMIZER):
        _collect(params.value, file, flow, owners, depth)  # of an optimizer that another one wraps
        return
    if isinstance(node.func, cst.Attribute) and name in _ASKED_OF_MODULES:
        owners.is_partial |= not name.endswith("parameters")
        if isinstance(node.func.value, cst.Name) and _is_loop_variable(node.func.value, file, flow, owners):
            _of_sources(node.func.value, file, flow, owners, depth)
        else:
            _add(node.func.value, file, flow, owners)
    elif name in _CONTAINERS:
        owners.is_partial |= name == "filter"
        for arg in node.args[1:] if name == "filter" else node.args:
            _collect(arg.value, file, flow, owners, depth)
    elif isinstance(node.func, cst.Attribute) and name in ("values", "items", "keys"):
        _collect(node.func.value, file, flow, owners, depth)
    elif isinstance(node.func, cst.Attribute) and of_kind(flow.values(node.func.value, file), Kind.MODULE):
        owners.is_partial = True  # a method of the module that selects its parameters
        _add(node.func.value, file, flow, owners)
    elif name == "enumerate" and node.args:
        _collect(node.args[0].value, file, flow, owners, depth)
    else:
        modules = [arg.value for arg in node.args if of_kind(flow.values(arg.value, file), Kind.MODULE)]
        if not modules:
            modules = [
                arg.value.func.value
                for arg in node.args
                if isinstance(arg.value, cst.Call)
                and isinstance(arg.value.func, cst.Attribute)
                and arg.value.func.attr.value in ("parameters", "named_parameters")
            ]
        if not modules:
            modules = [arg.value for arg in node.args if _is_used_as_module(arg.value, flow, file)]
        if not modules:
            raise UnknownOwnerError(f"{shown(node)} cannot be followed to a module")
        owners.is_partial = True
        for module in modules:
            _add(module, file, flow, owners)


def _of_name(node: cst.Name | cst.Attribute, file: SourceFile, flow: Flow, owners: Owners, depth: int) -> None:
    passed = _passed(node, file, flow, owners.calls)
    if passed is not None:
        _collect(passed[1], passed[0], flow, owners, depth)
        return
    values = flow.values(node, file)
    if of_kind(values, Kind.MODULE) or _is_used_as_module(node, flow, file):
        _add(node, file, flow, owners)
        return
    if are_standalone(values, flow):
        owners.tensors[expression_text(node)] = values
        return
    _of_sources(node, file, flow, owners, depth)


def _of_sources(node: cst.Name | cst.Attribute, file: SourceFile, flow: Flow, owners: Owners, depth: int) -> None:
    """Collect from what a name is made of, rather than from what it holds last."""
    passed = _passed(node, file, flow, owners.only_calls)
    if passed is not None:
        _collect(passed[1], passed[0], flow, owners, depth)
        return
    sources = list(sources_of_name(node, file, flow))
    if not sources and isinstance(node, cst.Attribute) and _is_module(node.value, file, flow, owners):
        owners.is_partial = True  # a parameter of it
        _collect(node.value, file, flow, owners, depth)
        return
    if all(isinstance(source, cst.List) and not source.elements for source, _ in sources):
        raise UnknownOwnerError(f"{shown(node)} cannot be followed to a module")
    owners.is_partial |= len([s for s, _ in sources if replaces(s, node, file)]) > 1
    for source, is_part in sources:
        owners.is_partial |= is_part
        if not any(source is known for known in owners.collected):
            owners.collected.append(source)
            _collect(source, file, flow, owners, depth)


def _passed(
    node: cst.BaseExpression, file: SourceFile, flow: Flow, calls: Sequence[Call]
) -> tuple[SourceFile, cst.BaseExpression] | None:
    """Return what the call that the optimizer has come through gives for a parameter."""
    scope = flow.scopes(file).owner(node.value, node) if isinstance(node, cst.Name) else None
    if not isinstance(node, cst.Name) or not isinstance(scope, cst.FunctionDef):
        return None
    for caller, call in calls:
        if any(v.key == id(scope) for v in flow.values(call.func, caller)):
            arg = flow.given(call, scope, node.value, caller)
            is_assigned = any(dotted(t) == node.value for n in file.nodes(cst.Assign, below=scope) for t in targets(n))
            if arg is not None and not arg.star and not is_assigned:
                return caller, arg.value
    return None


def _is_loop_variable(name: cst.Name, file: SourceFile, flow: Flow, owners: Owners) -> bool:
    """Return whether a name is one module after another of a loop that the optimizer is made behind."""
    return any(
        name.value == dotted(part)
        for loop in flow.scopes(file).nodes(name, cst.For)
        if not any(outer is loop for outer in owners.around)
        for part in walk(loop.target)
    )


def _is_module(node: cst.BaseExpression, file: SourceFile, flow: Flow, owners: Owners) -> bool:
    is_module = bool(of_kind(flow.values(node, file), Kind.MODULE))
    return isinstance(node, cst.Name) and (is_module or _is_loop_variable(node, file, flow, owners))


def _is_used_as_module(node: cst.BaseExpression, flow: Flow, file: SourceFile) -> bool:
    """Return whether the program asks what a library has made for the parameters or modules in it."""
    values = of_kind(flow.values(node, file), Kind.OBJECT)
    return bool(values) and any(
        flow.values(used.value, other) & values
        for other in flow.files.values()
        for name in _ASKED_OF_MODULES
        for used in other.attributes_by_name.get(name, ())
    )


def _is_namespace(node: cst.BaseExpression, file: SourceFile, flow: Flow) -> bool:
    """Return whether attributes of a node are no parts of a module: those of ``types.SimpleNamespace`` and the like."""
    held = flow.values(node, file)
    return bool(held) and all(value.name.partition(".")[0] in _NAMESPACES for value in held)


def _is_layer(node: cst.BaseExpression, file: SourceFile, flow: Flow) -> bool:
    """Return whether a node is an item of a module, as of an ``nn.Sequential``."""
    held = flow.values(node.value, file) if isinstance(node, cst.Subscript) else frozenset()
    return bool(held) and all(v.kind is Kind.MODULE or v.name.startswith("torch.nn.") for v in held)


def owner_at(module: cst.BaseExpression, file: SourceFile, flow: Flow) -> Owners:
    """Return a module by the expression that it is written as.

    Raises:
        UnknownOwnerError: it has no name.
    """
    owners = Owners()
    _add(module, file, flow, owners)
    return owners


def _add(module: cst.BaseExpression, file: SourceFile, flow: Flow, owners: Owners) -> None:
    """Add a module; of a part, the whole that it belongs to."""
    passed = _passed(module, file, flow, owners.calls)
    if passed is not None:
        _add(passed[1], passed[0], flow, owners)
        return
    values = flow.values(module, file)
    written, part = module, of_kind(values, Kind.PART)
    while isinstance(module, (cst.Attribute, cst.Subscript)) and (
        of_kind(values, Kind.PART) or (not values and _is_layer(module, file, flow))
    ):
        if _is_namespace(module.value, file, flow):
            values = part = values - of_kind(values, Kind.PART)
            break
        owners.is_partial = True
        module = module.value
        values = flow.values(module, file)
    held = of_kind(values, Kind.MODULE, Kind.OBJECT)
    if isinstance(module, cst.Attribute) and module.attr.value == "module" and held:  # of a wrapper
        module = module.value if flow.values(module.value, file) >= held else module
    known = of_kind(values, *_MODULES)
    for caller, call in owners.calls:
        known = flow.copies.all_of(known, caller, call)
    if not known or (dotted(module) is None and item_at(module, file, flow) is None):
        raise UnknownOwnerError(f"{shown(module)} cannot be followed to a module")
    owners.values[expression_text(module)] = known
    if len(part) != 1 or dotted(written) is None:
        owners.has_wholes = True
    else:
        owners.parts[expression_text(written)] = expression_text(module), next(iter(part))
