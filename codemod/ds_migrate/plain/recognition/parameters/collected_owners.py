"""The modules whose parameters an expression collects, through calls, names, displays and what fills them."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ds_migrate.plain.dataflow.containers.mappings import is_mapping_call
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.torch_names import FLUENT
from ds_migrate.plain.dataflow.values import NOTHING, Kind, Value, of_kind
from ds_migrate.plain.recognition.batches.passed_objects import Passed, passed_on
from ds_migrate.plain.recognition.parameters.assigned_names import held_there
from ds_migrate.plain.recognition.parameters.module_expressions import is_loop_variable, is_module, whole_of
from ds_migrate.plain.recognition.parameters.module_values import (
    ASKED_OF_MODULES,
    is_layer_of_torch,
    listed_modules,
    may_be_module,
)
from ds_migrate.plain.recognition.parameters.owners import Owners, add_module, passed_for, passed_for_star
from ds_migrate.plain.recognition.parameters.parameter_methods import (
    CONTAINERS,
    ReturnedItem,
    modules_asked,
    parameter_method,
    returned_here,
    returned_items,
    selects_parameters,
)
from ds_migrate.plain.recognition.parameters.parameter_sources import (
    UnknownOwnerError,
    iterated,
    replaces,
    shown,
    sources_of_name,
    text_of,
)
from ds_migrate.plain.recognition.parameters.standalone_tensors import are_standalone, is_own_parameter, listed_tensors
from ds_migrate.syntax.nodes import argument, called_name
from ds_migrate.syntax.one_line import expression_text
from ds_migrate.syntax.source import SourceFile


def collect(node: cst.CSTNode, file: SourceFile, flow: Flow, owners: Owners, depth: int) -> None:
    """Add to owners the modules that an expression takes parameters of, and the parameters of none.

    Args:
        depth: how many steps to follow at most.

    Raises:
        UnknownOwnerError: some of the parameters belong to none, or cannot be followed.
    """
    if depth == 0:
        raise UnknownOwnerError(f"{shown(node)} cannot be followed to a module")
    deeper = depth - 1
    if isinstance(node, cst.Call):
        _of_call(node, file, flow, owners, deeper)
    elif isinstance(node, (cst.ListComp, cst.GeneratorExp, cst.SetComp, cst.DictComp)):
        item = node.value if isinstance(node, cst.DictComp) else node.elt
        if isinstance(item, cst.Subscript):  # of what holds them by name
            owners.is_partial = True
            collect(item.value, file, flow, owners, deeper)
        else:
            owners.filters.add(node, block=id(file.parent(file.statement(node))))
            collect(iterated(node.for_in, item), file, flow, owners, deeper)
    elif isinstance(node, (cst.List, cst.Tuple)):
        for element in node.elements:
            collect(element.value, file, flow, owners, deeper)
    elif isinstance(node, cst.Dict):
        params = [e.value for e in node.elements if isinstance(e, cst.DictElement) and text_of(e.key) == "params"]
        if all(isinstance(e.value, cst.List) and not e.value.elements for e in node.elements):
            return  # lists that are filled later
        for value in params or [element.value for element in node.elements]:  # of a group, or by their names
            collect(value, file, flow, owners, deeper)
    elif isinstance(node, cst.BinaryOperation):
        collect(node.left, file, flow, owners, deeper)
        collect(node.right, file, flow, owners, deeper)
    elif isinstance(node, cst.IfExp):
        owners.is_partial = True
        collect(node.body, file, flow, owners, deeper)
        collect(node.orelse, file, flow, owners, deeper)
    elif isinstance(node, (cst.Name, cst.Attribute)):
        _of_name(node, file, flow, owners, deeper)
    elif isinstance(node, cst.Subscript) and isinstance(node.value, (cst.Name, cst.Attribute)):
        owners.is_partial = True  # one list of several
        collect(node.value, file, flow, owners, deeper)
    else:
        raise UnknownOwnerError(f"{shown(node)} cannot be followed to a module")


def _of_call(node: cst.Call, file: SourceFile, flow: Flow, owners: Owners, depth: int) -> None:
    name = called_name(node)
    params = argument(node, 0, "params")
    is_group = is_mapping_call(node)  # dict(params=..., lr=...)
    if params is not None and not params.star and (is_group or of_kind(flow.values(node, file), Kind.OPTIMIZER)):
        collect(params.value, file, flow, owners, depth)  # of an optimizer that another one wraps, too
        return
    if are_standalone(made := flow.values(node, file), flow):
        owners.tensors[expression_text(node)] = made
        return
    method = parameter_method(node, file, flow)
    if method is not None:
        found = Owners()
        collect(method.returned, method.file, flow, found, depth)
        method.add_to(owners, found)
        return
    if isinstance(node.func, cst.Attribute) and name in ASKED_OF_MODULES:
        owners.is_partial |= not name.endswith("parameters")
        if isinstance(node.func.value, cst.Name) and is_loop_variable(node.func.value, file, flow, owners):
            _of_sources(node.func.value, file, flow, owners, depth)
        else:
            add_module(node.func.value, file, flow, owners)
    elif name in CONTAINERS:
        owners.is_partial |= name in ("filter", "set")  # a set has another order in each process
        for arg in node.args[1:] if name == "filter" else node.args:
            collect(arg.value, file, flow, owners, depth)
    elif isinstance(node.func, cst.Attribute) and name in ("values", "items", "keys", "requires_grad_"):
        collect(node.func.value, file, flow, owners, depth)
    elif isinstance(node.func, cst.Attribute) and of_kind(flow.values(node.func.value, file), Kind.MODULE):
        owners.is_partial = True  # a method of the module that selects its parameters
        add_module(node.func.value, file, flow, owners)
        if not selects_parameters(node, file, flow):
            owners.tensors[expression_text(node)] = NOTHING
    elif name == "enumerate" and node.args:
        collect(node.args[0].value, file, flow, owners, depth)
    else:
        modules = [arg.value for arg in node.args if of_kind(flow.values(arg.value, file), Kind.MODULE)]
        if not modules:
            modules = [module for arg in node.args for module in modules_asked(arg.value, file, flow)]
        if not modules:
            modules = [arg.value for arg in node.args if may_be_module(flow.values(arg.value, file), flow)]
        owners.is_partial = True
        for source in () if modules else returned_here(node, file, flow):
            collect(source, file, flow, owners, depth)
            return
        if not modules:
            moved = [node.func.value] if isinstance(node.func, cst.Attribute) and name in FLUENT else []
            given = moved or [arg.value for arg in node.args if isinstance(arg.value, (cst.Name, cst.Attribute))]
            raise UnknownOwnerError(
                f"{shown(node)} cannot be followed to a module", (given[0], file) if given else None
            )
        for module in modules:
            add_module(module, file, flow, owners)


def _of_name(node: cst.Name | cst.Attribute, file: SourceFile, flow: Flow, owners: Owners, depth: int) -> None:
    starred, known = passed_for_star(node, file, flow, owners.calls or owners.only_calls), set(owners.values)
    for caller, given in starred:
        if isinstance(given, cst.Call):
            collect(given, caller, flow, owners, depth)
        else:
            add_module(given, caller, flow, owners)
    owners.passed |= set(owners.values) - known if not owners.calls else set()
    passed = passed_for(node, file, flow, owners.calls)
    if passed is not None:
        collect(passed[1], passed[0], flow, owners, depth)
    if starred or passed is not None:
        return
    values = held_there(node, file, flow)
    if may_be_module(values, flow):
        add_module(node, file, flow, owners)
        return
    listed = listed_modules(values, flow)
    if listed:
        method = ".values()" if of_kind(values, Kind.MAPPING) else ""
        owners.values[f"*{expression_text(node)}{method}"] = listed
        owners.is_partial = owners.has_wholes = True
        return
    if isinstance(node, cst.Attribute) and is_own_parameter(node, file, flow):
        owners.is_partial = owners.has_own_parameters = True
        add_module(node.value, file, flow, owners)
        return
    tensors = values if are_standalone(values, flow) else listed_tensors(values, flow)
    if tensors:
        owners.tensors[expression_text(node)] = tensors
        return
    _of_sources(node, file, flow, owners, depth)


def _of_sources(node: cst.Name | cst.Attribute, file: SourceFile, flow: Flow, owners: Owners, depth: int) -> None:
    """Collect from what a name is made of, rather than from what it holds last."""
    passed = passed_for(node, file, flow, owners.only_calls)
    if passed is not None:
        known = {*owners.values, *owners.tensors}
        collect(passed[1], passed[0], flow, owners, depth)
        owners.passed |= {*owners.values, *owners.tensors} - known
        return
    is_parameter = flow.scopes(file).function_of_parameter(node) is not None
    given = passed_on(node, file, flow) if isinstance(node, cst.Name) and is_parameter else []
    if given:
        _of_calls(expression_text(node), given, flow, owners, depth)
        return
    returned = returned_items(node, file, flow)
    for each in returned:
        _of_returned(expression_text(node), each, file, flow, owners, depth)
    sources = list(sources_of_name(node, file, flow))
    whole = whole_of(node, file, flow)
    if not sources and whole is not node and is_module(whole, file, flow, owners):
        owners.is_partial = True  # a parameter of it
        if any(is_layer_of_torch(value) for value in flow.values(whole, file)):
            add_module(whole, file, flow, owners)
        else:
            collect(whole, file, flow, owners, depth)
        return
    if not returned and all(isinstance(source, cst.List) and not source.elements for source, _ in sources):
        raise UnknownOwnerError(f"{shown(node)} cannot be followed to a module")
    owners.is_partial |= len([s for s, _ in sources if replaces(s, node, file)]) > 1
    for source, is_part in sources:
        owners.is_partial |= is_part
        if not any(source is known for known in owners.collected):
            owners.collected.append(source)
            tensors = flow.values(source, file) if isinstance(source, cst.Call) else NOTHING
            if are_standalone(tensors, flow):
                owners.tensors[expression_text(node)] = owners.tensors.get(expression_text(node), NOTHING) | tensors
            else:
                known = {*owners.values, *owners.tensors}
                collect(source, file, flow, owners, depth)
                owners.passed |= _named_elsewhere({*owners.values, *owners.tensors} - known, source, node, file)


def _of_returned(name: str, returned: ReturnedItem, file: SourceFile, flow: Flow, owners: Owners, depth: int) -> None:
    """Collect the parameters that a function returns, by the modules that its call is given where these have names."""
    calls = [(file, returned.call), *owners.calls]
    found = Owners(calls=calls, around=owners.around, filters=owners.filters, collected=owners.collected)
    collect(returned.item, returned.file, flow, found, depth)
    owners.is_partial = owners.has_wholes = True
    given = [(expression_text(arg.value), flow.values(arg.value, home)) for home, call in calls for arg in call.args]
    if not found.tensors and all((text, values) in given for text, values in found.values.items()):
        owners.values |= found.values
        return
    owners.tensors[name] = frozenset[Value]().union(*found.values.values(), *found.tensors.values())
    owners.has_unnamed |= bool(found.values) or found.has_unnamed


def _named_elsewhere(texts: set[str], source: cst.CSTNode, node: cst.CSTNode, file: SourceFile) -> set[str]:
    """Return the names of modules that another function has, where that fills what a method reads of ``self``."""
    function = file.function(source)
    if function is None or any(outer is function for outer in file.ancestors(node)):
        return set()
    receivers = [p.name.value for p in function.params.params[:1]] if file.class_around(function) is not None else []
    return {text for text in texts if text.partition(".")[0] not in receivers}


def _of_calls(name: str, given: Sequence[Passed], flow: Flow, owners: Owners, depth: int) -> None:
    """Collect the parameters that several calls give, or that a class is given, where their modules have no name."""
    others = Owners()
    for file, source in given:
        collect(source, file, flow, others, depth)
    owners.tensors[name] = frozenset[Value]().union(*others.values.values(), *others.tensors.values())
    owners.is_partial = True
    owners.has_unnamed |= bool(others.values) or others.has_unnamed
