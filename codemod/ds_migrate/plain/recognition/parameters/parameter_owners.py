"""The modules whose parameters an optimizer is given."""

from __future__ import annotations

import re
from collections.abc import Sequence

import libcst as cst

from ds_migrate.plain.dataflow.calls.copies import Call
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.recognition.parameters.collected_owners import collect
from ds_migrate.plain.recognition.parameters.module_values import may_be_module
from ds_migrate.plain.recognition.parameters.owners import Owners, add_module
from ds_migrate.plain.recognition.parameters.parameter_sources import UnknownOwnerError
from ds_migrate.syntax.nodes import argument
from ds_migrate.syntax.source import SourceFile

_FREEZES = re.compile(rb"requires_grad(_\s*\(|\s*=[^=])")
_DEPTH = 24


def owners_of(
    maker: cst.Call,
    file: SourceFile,
    flow: Flow,
    calls: Sequence[Call],
    only_calls: Sequence[Call],
    groups: Sequence[cst.Call] = (),
) -> Owners:
    """Return the modules whose parameters the call that makes an optimizer is given.

    ``calls`` are those of the functions around it that return the optimizer, the innermost first; ``only_calls`` those
    of functions around it that are called at one place; ``groups`` are those of ``add_param_group()`` beside it.

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
            collect(node, file, flow, owners, _DEPTH)
    except UnknownOwnerError:  # of a library's get_optimizer(name, model), where a library made the model, too
        others = [arg.value for arg in made.args if arg is not given and not arg.star]
        modules = [node for node in others if may_be_module(flow.values(node, file), flow)]
        if not modules:
            raise
        owners.is_partial = True
        for node in modules:
            add_module(node, file, flow, owners)
    for call in groups:
        owners.is_partial = True
        try:
            _collect_group(call, file, flow, owners)
        except UnknownOwnerError:
            if len(owners.values) != 1 or owners.tensors:  # match_torch() refuses those of another module
                raise
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
    owners = Owners()
    _collect_group(call, file, flow, owners)
    return owners


def _collect_group(call: cst.Call, file: SourceFile, flow: Flow, owners: Owners) -> None:
    group = argument(call, 0, "param_group")
    if group is None or group.star:
        raise UnknownOwnerError("add_param_group() is given no parameters that can be followed")
    collect(group.value, file, flow, owners, _DEPTH)
