"""The modules whose parameters an optimizer is given."""

from __future__ import annotations

import re
from collections.abc import Sequence

import libcst as cst

from ds_migrate.plain.dataflow.calls.copies import Call
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.scopes import names_in
from ds_migrate.plain.dataflow.torch_names import FLUENT
from ds_migrate.plain.dataflow.values import NOTHING, Kind, Value, of_kind
from ds_migrate.plain.recognition.batches.passed_objects import Passed, is_parameter, passed_on
from ds_migrate.plain.recognition.parameters.assigned_names import held_there
from ds_migrate.plain.recognition.parameters.held_parts import part_held
from ds_migrate.plain.recognition.parameters.module_lists import (
    ASKED_OF_MODULES,
    is_layer_of_torch,
    listed_modules,
    may_be_module,
)
from ds_migrate.plain.recognition.parameters.owners import Owners, add_module, passed_for, passed_for_star
from ds_migrate.plain.recognition.parameters.parameter_methods import (
    CONTAINERS,
    modules_asked,
    parameter_method,
    returned_here,
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
from ds_migrate.syntax.nodes import argument, called_name, dotted, walk
from ds_migrate.syntax.one_line import expression_text
from ds_migrate.syntax.source import SourceFile

_FREEZES = re.compile(rb"requires_grad(_\s*\(|\s*=[^=])")
_DEPTH = 24


def owners_of(
    maker: cst.Call, file: SourceFile, flow: Flow, calls: Sequence[Call], only_calls: Sequence[Call]
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
    if any(not _is_given_alike(other, given) for other in flow.constructions(maker, file)):
        raise UnknownOwnerError("which of several optimizers is made decides on them")
    owners = Owners(calls=calls, only_calls=only_calls, around=list(file.ancestors(maker)))
    owners.filters.is_frozen_fixed = not any(_FREEZES.search(other.data) for other in flow.files.values())
    modules = [arg.value for arg in made.args if not arg.star and of_kind(flow.values(arg.value, file), Kind.MODULE)]
    if modules:  # as in create_optimizer(args, model)
        given_nodes: list[cst.BaseExpression] = modules
        owners.is_partial = True
    else:
        given_nodes = [given.value]
    try:
        for node in given_nodes:
            _collect(node, file, flow, owners, _DEPTH)
    except UnknownOwnerError:  # of a library's get_optimizer(name, model), where a library made the model, too
        others = [arg.value for arg in made.args if arg is not given and not arg.star]
        modules = [node for node in others if may_be_module(flow.values(node, file), flow)]
        if not modules:
            raise
        owners.is_partial = True
        for node in modules:
            add_module(node, file, flow, owners)
    if not owners.values and not owners.tensors:
        raise UnknownOwnerError("it is given parameters of no module that can be followed")
    if owners.has_own_parameters:  # its other modules are parts of the module itself
        own = [text for text, values in owners.values.items() if of_kind(values, Kind.INSTANCE)]
        parts = [text for text in owners.values if any(text.startswith(f"{one}.") for one in own)]
        owners.values = {text: values for text, values in owners.values.items() if text not in parts}
    if owners.values and owners.has_unnamed:
        raise UnknownOwnerError("some are of modules that have no name there")
    owners.is_partial |= owners.filters.is_partial
    return owners


def _is_given_alike(construction: cst.Call, params: cst.Arg) -> bool:
    """Return whether another optimizer that may be made in the same place gets the same parameters."""
    given = argument(construction, 0, "params") or argument(construction, None, "params")
    return given is None or given.value.deep_equals(params.value)


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
    name = called_name(node)
    params = argument(node, 0, "params")
    if params is not None and not params.star and of_kind(flow.values(node, file), Kind.OPTIMIZER):
        _collect(params.value, file, flow, owners, depth)  # of an optimizer that another one wraps
        return
    method = parameter_method(node, file, flow)
    if method is not None:
        found = Owners()
        _collect(method.returned, method.file, flow, found, depth)
        method.add_to(owners, found)
        return
    if isinstance(node.func, cst.Attribute) and name in ASKED_OF_MODULES:
        owners.is_partial |= not name.endswith("parameters")
        if isinstance(node.func.value, cst.Name) and _is_loop_variable(node.func.value, file, flow, owners):
            _of_sources(node.func.value, file, flow, owners, depth)
        else:
            add_module(node.func.value, file, flow, owners)
    elif name in CONTAINERS:
        owners.is_partial |= name == "filter"
        for arg in node.args[1:] if name == "filter" else node.args:
            _collect(arg.value, file, flow, owners, depth)
    elif isinstance(node.func, cst.Attribute) and name in ("values", "items", "keys", "requires_grad_"):
        _collect(node.func.value, file, flow, owners, depth)
    elif isinstance(node.func, cst.Attribute) and of_kind(flow.values(node.func.value, file), Kind.MODULE):
        owners.is_partial = True  # a method of the module that selects its parameters
        add_module(node.func.value, file, flow, owners)
        if not selects_parameters(node, file, flow):
            owners.tensors[expression_text(node)] = NOTHING
    elif name == "enumerate" and node.args:
        _collect(node.args[0].value, file, flow, owners, depth)
    else:
        modules = [arg.value for arg in node.args if of_kind(flow.values(arg.value, file), Kind.MODULE)]
        if not modules:
            modules = [module for arg in node.args for module in modules_asked(arg.value, file, flow)]
        if not modules:
            modules = [arg.value for arg in node.args if may_be_module(flow.values(arg.value, file), flow)]
        owners.is_partial = True
        for source in () if modules else returned_here(node, file, flow):
            _collect(source, file, flow, owners, depth)
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
            _collect(given, caller, flow, owners, depth)
        else:
            add_module(given, caller, flow, owners)
    owners.passed |= set(owners.values) - known if not owners.calls else set()
    passed = passed_for(node, file, flow, owners.calls)
    if passed is not None:
        _collect(passed[1], passed[0], flow, owners, depth)
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
        _collect(passed[1], passed[0], flow, owners, depth)
        owners.passed |= {*owners.values, *owners.tensors} - known
        return
    given = passed_on(node, file, flow) if isinstance(node, cst.Name) and is_parameter(node, file, flow) else []
    if given:
        _of_calls(expression_text(node), given, flow, owners, depth)
        return
    sources = list(sources_of_name(node, file, flow))
    whole = _whole_of(node, file, flow)
    if not sources and whole is not node and _is_module(whole, file, flow, owners):
        owners.is_partial = True  # a parameter of it
        if any(is_layer_of_torch(value) for value in flow.values(whole, file)):
            add_module(whole, file, flow, owners)
        else:
            _collect(whole, file, flow, owners, depth)
        return
    if all(isinstance(source, cst.List) and not source.elements for source, _ in sources):
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
                _collect(source, file, flow, owners, depth)
                owners.passed |= _named_elsewhere({*owners.values, *owners.tensors} - known, source, node, file)


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
        _collect(source, file, flow, others, depth)
    owners.tensors[name] = frozenset[Value]().union(*others.values.values(), *others.tensors.values())
    owners.is_partial = True
    owners.has_unnamed |= bool(others.values) or others.has_unnamed


def _is_loop_variable(name: cst.Name, file: SourceFile, flow: Flow, owners: Owners) -> bool:
    """Return whether a name is one module after another of a loop that the optimizer is made behind."""
    loops = [outer.for_in if isinstance(outer, cst.BaseComp) else outer for outer in owners.around]
    if any(isinstance(loop, (cst.For, cst.CompFor)) and name.value in names_in(loop.target) for loop in loops):
        return False  # an optimizer is made for each
    return any(
        name.value == dotted(part)
        for loop in flow.scopes(file).nodes(name, cst.For)
        if not any(outer is loop for outer in owners.around)
        for part in walk(loop.target)
    )


def _whole_of(node: cst.BaseExpression, file: SourceFile, flow: Flow) -> cst.BaseExpression:
    """Return what a parameter is an attribute of, or of a part of: the model of ``model.layers[0].weight``."""
    while isinstance(node, (cst.Attribute, cst.Subscript)):
        node = node.value
        values = flow.values(node, file)
        if values != of_kind(values, Kind.PART):
            break
    return node


def _is_module(node: cst.BaseExpression, file: SourceFile, flow: Flow, owners: Owners) -> bool:
    if isinstance(node, cst.Name) and _is_loop_variable(node, file, flow, owners):
        return True
    values = flow.values(node, file)
    if not isinstance(node, (cst.Name, cst.Attribute)) or not of_kind(values, Kind.MODULE, Kind.OBJECT):
        return isinstance(node, cst.Name) and part_held(node, file, flow) is not None
    return may_be_module(values, flow) or all(is_layer_of_torch(value) for value in values)
