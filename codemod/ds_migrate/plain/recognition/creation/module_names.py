"""The names of an optimizer's modules where its engine is made."""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.scopes import is_label
from ds_migrate.plain.dataflow.values import NOTHING, Kind, Value, Values, of_kind, without_parts
from ds_migrate.plain.recognition.creation.bindings import Bound
from ds_migrate.plain.recognition.facts import Refusal
from ds_migrate.plain.recognition.parameters.owners import Owners, owner_at
from ds_migrate.plain.recognition.parameters.parameter_sources import UnknownOwnerError
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import dotted, parameters, targets
from ds_migrate.syntax.source import SourceFile


def modules_at(owners: Owners, member: Bound, maker_file: SourceFile, flow: Flow) -> Owners | Refusal:
    """Return the modules, and parts of modules, as they are called where the engine is made.

    The parameters of one module that has no name there are tensors of the optimizer.
    """
    file, function = member.file, member.file.function(member.statement)
    is_here = maker_file is file and maker_file.function(member.maker[1]) is function
    found: dict[str, Values] = {}
    method = maker_file.function(member.maker[1])
    of_receiver = None if is_here else _parts_of_receiver(method, owners, member, flow)
    if of_receiver is not None:
        return of_receiver
    for text, values in owners.values.items():
        if is_here and (text not in owners.passed or _is_of_module(text, values, member, flow)):
            found[text] = values
            continue
        named = (
            _receiver_of(method, text, member, flow)
            or _attribute_of_receiver(method, text, values, member, flow)
            or _argument_at(method, text, values, member, maker_file, flow)
        )
        if named:
            found |= named
            continue
        name = visible_name(values, member.statement, file, flow) if not text.startswith("*") else None
        if name is None and len(owners.values) == 1 and not owners.tensors:
            return replace(owners, values={}, tensors={text: values}, parts={})  # which the optimizer leads to
        if name is None:
            return Refusal(
                Code.PLAIN_ENGINE, file, member.target,
                "a module of the optimizer has no name where the optimizer is bound",
                "give the model a name there: make both in the same function, or return it beside the optimizer",
            )  # fmt: skip
        found[name] = values
    return replace(owners, values=found, parts=owners.parts if is_here else {})


def _is_of_module(text: str, values: Values, member: Bound, flow: Flow) -> bool:
    """Return whether a name of the file's module, which the function of a site does not bind, holds a module."""
    file, function, root = member.file, member.file.function(member.statement), text.partition(".")[0]
    is_global = flow.scopes(file).owner(root, member.target) is file.module and function is not None
    return is_global and any(
        values <= flow.values(node, file) and file.function(node) is None
        for node in file.nodes(cst.Name, cst.Attribute)
        if dotted(node) == text
    )


def _receiver_of(method: cst.FunctionDef | None, text: str, member: Bound, flow: Flow) -> dict[str, Values]:
    """Return the module whose method makes the optimizer, as the call at the site is written on it."""
    if method is None or text not in [p.name.value for p in method.params.params[:1]]:
        return {}
    for call in member.file.nodes(cst.Call, below=member.call_statement or member.statement):
        callees = of_kind(flow.values(call.func, member.file), Kind.METHOD)
        if isinstance(call.func, cst.Attribute) and id(method) in {v.key for v in callees}:
            try:
                found = owner_at(call.func.value, member.file, flow).values
            except UnknownOwnerError:
                return {}
            return found if all(of_kind(held, Kind.MODULE) == held for held in found.values()) else {}
    return {}


def _parts_of_receiver(method: cst.FunctionDef | None, owners: Owners, member: Bound, flow: Flow) -> Owners | None:
    """Return the parts of the module whose method makes the optimizer of them, as the call at the site names it."""
    names = [text.partition(".") for text in owners.values]
    if owners.tensors or not all(path for _, _, path in names) or len({name for name, _, _ in names}) != 1:
        return None
    ((outer, held),) = (_receiver_of(method, names[0][0], member, flow) or {"": NOTHING}).items()
    if not held:
        return None
    parts = {f"{outer}.{path}": (outer, Value(Kind.PART, of.key, path)) for _, _, path in names for of in held}
    is_one = len(held) == 1  # the parts of one of several are not known
    return replace(owners, values={outer: held}, parts=parts if is_one else {}, is_partial=True, has_wholes=not is_one)


def _attribute_of_receiver(
    method: cst.FunctionDef | None, text: str, values: Values, member: Bound, flow: Flow
) -> dict[str, Values]:
    """Return ``self.model``, of which a method makes the optimizer, where the call at the site is written on self."""
    receiver, dot, name = text.partition(".")
    if method is None or not dot or receiver not in [p.name.value for p in method.params.params[:1]]:
        return {}
    file = member.maker[0]
    owner_class = file.class_around(method)
    if owner_class is None or flow.classes.is_module(owner_class, file):
        return {}  # a module, of which this is a part
    for call in member.file.nodes(cst.Call, below=member.call_statement or member.statement):
        callees = of_kind(flow.values(call.func, member.file), Kind.METHOD)
        if isinstance(call.func, cst.Attribute) and {v.key for v in callees} == {id(method)}:
            owner = dotted(call.func.value)
            return {f"{owner}.{name}": values} if owner is not None else {}
    return {}


def _argument_at(
    method: cst.FunctionDef | None, text: str, values: Values, member: Bound, maker_file: SourceFile, flow: Flow
) -> dict[str, Values]:
    """Return the module that the call at the site gives to the function that makes the optimizer of it.

    It may give the parameters of the module instead.
    """
    file, at = member.file, member.call_statement or member.statement
    nodes = _names_below(at, file) if isinstance(at, cst.SimpleStatementLine) else ()
    if any(dotted(node) == text and without_parts(flow.values(node, file)) == values for node in nodes):
        return {text: values}
    if method is None or text not in [p.name.value for p in parameters(method)]:
        return {}
    assigned = [line for line in maker_file.nodes(cst.Assign, below=method) if text in map(dotted, targets(line))]
    if any(dotted(line.value) != f"{text}.module" for line in assigned):  # of a wrapper
        return {}
    for call in file.nodes(cst.Call, below=at):
        if {v.key for v in of_kind(flow.values(call.func, file), Kind.METHOD, Kind.FUNCTION)} == {id(method)}:
            given = flow.given(call, method, text, file)
            try:
                return owner_at(given.value, file, flow).values if given is not None and not given.star else {}
            except UnknownOwnerError:
                return {}
    return {}


def _names_below(node: cst.CSTNode, file: SourceFile) -> list[cst.Name | cst.Attribute]:
    """Return the names and attributes below a node; ``model`` of ``self.model`` and ``f(model=net)`` is none."""
    found = file.nodes(cst.Name, cst.Attribute, below=node)
    return [one for one in found if not (isinstance(one, cst.Name) and is_label(one, file))]


def visible_name(values: Values, statement: cst.BaseStatement, file: SourceFile, flow: Flow) -> str | None:
    """Return the name, attribute or item that holds these modules, and no other, before a statement runs.

    A name that may also hold a part of one of them is such a name: it names what is trained in either case.
    """
    line = file.position(statement)
    function = file.function(statement)
    nodes = [
        node for node in _names_below(function or file.module, file)
        if dotted(node) is not None and file.function(node) is function
        and (file.position(node) <= line or file.statement(node) is statement)
    ]  # fmt: skip
    nodes.sort(key=lambda node: isinstance(file.parent(node), cst.Attribute))  # `self.net` of `self.net.parameters()`
    names = (dotted(node) for node in nodes if without_parts(flow.values(node, file)) == values)
    items = (
        f"{dotted(node)}{item}" for node in nodes if len(flow.values(node, file)) == 1
        for mapping in of_kind(flow.values(node, file), Kind.MAPPING)
        for item, held in flow.literal_items(mapping) if held == values
    )  # fmt: skip
    return next(names, None) or next(items, None)
