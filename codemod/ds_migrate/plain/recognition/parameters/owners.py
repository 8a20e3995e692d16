"""Modules by the expressions that a program writes for them: of a part, the whole that it belongs to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import libcst as cst

from ds_migrate.plain.dataflow.calls.copies import Call
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.torch_names import ATTRIBUTE_DICTS
from ds_migrate.plain.dataflow.values import Kind, Value, Values, are_all, of_kind
from ds_migrate.plain.recognition.creation.containers import item_at
from ds_migrate.plain.recognition.parameters.assigned_names import is_renewed
from ds_migrate.plain.recognition.parameters.module_values import keeps_parts, makes_whole, part_held
from ds_migrate.plain.recognition.parameters.parameter_filters import Filters
from ds_migrate.plain.recognition.parameters.parameter_sources import UnknownOwnerError, shown
from ds_migrate.syntax.nodes import dotted, indices_of, targets, without_index
from ds_migrate.syntax.one_line import expression_text
from ds_migrate.syntax.source import SourceFile

_MODULES = (Kind.MODULE, Kind.OBJECT, Kind.INSTANCE)
_NAMESPACES = {"types", "argparse", "omegaconf", *(name.partition(".")[0] for name in ATTRIBUTE_DICTS)}


@dataclass
class Owners:
    """Modules by the text of their expressions. ``is_partial``: the optimizer may hold a part of their parameters.

    ``tensors`` are in no module, or all in modules that have no name there. ``passed`` are those of both that another
    function names, as it passes them on.
    """

    values: dict[str, Values] = field(default_factory=dict)
    tensors: dict[str, Values] = field(default_factory=dict)
    passed: set[str] = field(default_factory=set)
    is_partial: bool = False
    filters: Filters = field(default_factory=Filters)
    collected: list[cst.CSTNode] = field(default_factory=list)  # what names hold: one may be made of itself
    parts: dict[str, tuple[str, Value]] = field(default_factory=dict)  # that are named exactly, with their wholes
    has_wholes: bool = False
    has_unnamed: bool = False
    has_own_parameters: bool = False  # of the module in whose method the optimizer is made
    calls: Sequence[Call] = ()  # that the optimizer has come through, the innermost first
    only_calls: Sequence[Call] = ()  # of the functions around it that are called at one place, the innermost first
    around: Sequence[cst.CSTNode] = ()  # what the optimizer is made in, the innermost first


def owner_at(module: cst.BaseExpression, file: SourceFile, flow: Flow) -> Owners:
    """Return a module by the expression that it is written as.

    Raises:
        UnknownOwnerError: it has no name.
    """
    owners = Owners()
    add_module(module, file, flow, owners)
    return owners


def add_module(module: cst.BaseExpression, file: SourceFile, flow: Flow, owners: Owners) -> None:
    """Add a module; of a part, the whole that it belongs to."""
    passed = passed_for(module, file, flow, owners.calls)
    if passed is not None:
        add_module(passed[1], passed[0], flow, owners)
        return
    whole = _asked_for_part(module, file, flow)
    if whole is not None:
        add_module(whole, file, flow, owners)
        owners.is_partial = owners.has_wholes = True
        return
    values = flow.values(module, file)
    held = part_held(module, file, flow)
    if held is not None and makes_whole(held, file, flow):  # which has no name
        owners.values[expression_text(module)] = values
        owners.is_partial = owners.has_wholes = True
        return
    if held is not None:
        add_module(held, file, flow, owners)
        return
    written, part = module, of_kind(values, Kind.PART)
    while (
        isinstance(module, (cst.Attribute, cst.Subscript))
        and not keeps_parts(module, file, flow)
        and (of_kind(values, Kind.PART) or (not values and _is_layer(module, file, flow)))
    ):
        attributes = _of_namespaces(values, module.value, file, flow)
        if attributes and attributes == of_kind(values, Kind.PART):
            values = part = values - attributes
            break
        owners.is_partial = True
        module = module.value
        values = flow.values(module, file)
    wrapped = of_kind(values, Kind.MODULE, Kind.OBJECT)
    if isinstance(module, cst.Attribute) and module.attr.value == "module" and wrapped:
        module = module.value if flow.values(module.value, file) >= wrapped else module
    known = of_kind(values, *_MODULES)
    for caller, call in owners.calls:
        known = flow.copies.all_of(known, caller, call)
    is_named = dotted(module) is not None or item_at(module, file, flow) is not None or _is_indexed(module)
    is_named |= isinstance(module, cst.Call) and dotted(module.func) == "getattr"
    if not known or not is_named:
        unknown = module, file
        raise UnknownOwnerError(f"{shown(module)} cannot be followed to a module", unknown, is_module=module is written)
    if owners.around and is_renewed(module, file, [*owners.around, *_around_calls(owners)]):
        owners.tensors[expression_text(module)] = known
        owners.is_partial = owners.has_unnamed = True
        return
    owners.values[expression_text(module)] = known
    if len(part) != 1 or dotted(written) is None:
        owners.has_wholes = True
    else:
        owners.parts[expression_text(written)] = expression_text(module), next(iter(part))


def _around_calls(owners: Owners) -> Iterator[cst.CSTNode]:
    """Yield what the calls are in that lead to the optimizer, or return it."""
    for file, call in (*owners.calls, *owners.only_calls):
        yield from file.ancestors(call)


def _asked_for_part(node: cst.BaseExpression, file: SourceFile, flow: Flow) -> cst.BaseExpression | None:
    """Return the module that a call asks for a part of it: ``model`` in ``model.get_input_embeddings()``."""
    if not isinstance(node, cst.Call) or node.args or not isinstance(node.func, cst.Attribute):
        return None
    whole, function = node.func.value, node.func.attr.value
    values = flow.values(whole, file)
    if not function.startswith("get_") or not are_all(values, Kind.MODULE, Kind.OBJECT):
        return None
    for method in of_kind(flow.values(node.func, file), Kind.FUNCTION, Kind.METHOD):
        returned = flow.file(method).returned(flow.node(method))
        if not returned or not all((dotted(value) or "").startswith("self.") for value in returned if value):
            return None
    return whole


def _is_indexed(node: cst.BaseExpression) -> bool:
    """Return whether a node is an item by a name, as ``models[i]``."""
    indices = list(indices_of(node)) if isinstance(node, cst.Subscript) else []
    return len(indices) == 1 and isinstance(indices[0], cst.Name) and dotted(without_index(node)) is not None


def passed_for(
    node: cst.BaseExpression, file: SourceFile, flow: Flow, calls: Sequence[Call]
) -> tuple[SourceFile, cst.BaseExpression] | None:
    """Return what the call that the optimizer has come through gives for a parameter."""
    scope = flow.scopes(file).owner(node.value, node) if isinstance(node, cst.Name) else None
    if not isinstance(node, cst.Name) or not isinstance(scope, cst.FunctionDef):
        return None
    for caller, call in calls:
        arg = flow.given(call, scope, node.value, caller)
        is_assigned = any(dotted(t) == node.value for n in file.nodes(cst.Assign, below=scope) for t in targets(n))
        if arg is not None and not arg.star and not is_assigned:
            return caller, arg.value
    return None


def passed_for_star(
    node: cst.BaseExpression, file: SourceFile, flow: Flow, calls: Sequence[Call]
) -> list[tuple[SourceFile, cst.BaseExpression]]:
    """Return what the call that the optimizer has come through gives for a parameter ``*modules``."""
    scope = flow.scopes(file).owner(node.value, node) if isinstance(node, cst.Name) else None
    star = scope.params.star_arg if isinstance(scope, cst.FunctionDef) else None
    if not isinstance(node, cst.Name) or not isinstance(star, cst.Param) or star.name.value != node.value:
        return []
    return [(home, arg) for home, call in calls for (key, _), arg in flow.passed(call, home) if key == id(star)]


def _of_namespaces(values: Values, node: cst.BaseExpression, file: SourceFile, flow: Flow) -> Values:
    """Return the attributes of a node that are no parts of a module: those of ``types.SimpleNamespace`` and the like.

    The node may also hold an object of a class, as ``parser`` that was an ``ArgumentParser`` before.
    """
    held = flow.values(node, file)
    namespaces = {value for value in held if value.name.partition(".")[0] in _NAMESPACES}
    if namespaces:  # a copy beside one is of such a one
        namespaces |= {value for value in held if value.name.startswith("copy.")}
    if held and held == namespaces:
        return of_kind(values, Kind.PART)
    keys = {value.key for value in namespaces}
    return frozenset(value for value in of_kind(values, Kind.PART) if value.key in keys)


def _is_layer(node: cst.BaseExpression, file: SourceFile, flow: Flow) -> bool:
    """Return whether a node is an item or attribute of a module, as of an ``nn.Sequential``, at any depth."""
    if not isinstance(node, (cst.Attribute, cst.Subscript)):
        return False
    held = flow.values(node.value, file)
    if not held:
        return _is_layer(node.value, file, flow)
    return all(v.kind is Kind.MODULE or v.name.startswith("torch.nn.") for v in held)
