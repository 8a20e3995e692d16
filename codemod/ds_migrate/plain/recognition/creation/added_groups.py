"""Groups of parameters that a program adds to an optimizer behind the call that makes it, or later."""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst

from ds_migrate.plain.dataflow.calls.copies import Call
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Values
from ds_migrate.plain.recognition.creation.bindings import Bound
from ds_migrate.plain.recognition.creation.module_names import visible_name
from ds_migrate.plain.recognition.facts import Refusal
from ds_migrate.plain.recognition.parameters.owners import Owners
from ds_migrate.plain.recognition.parameters.parameter_owners import owners_of_group
from ds_migrate.plain.recognition.parameters.parameter_sources import UnknownOwnerError
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import walk
from ds_migrate.syntax.source import SourceFile


def owners_of_later(place: Call, first: Owners, flow: Flow) -> Owners:
    """Return the modules of a group that is added later; none where it can only be of the optimizer's one module.

    ``match_torch()`` refuses others when they are added.

    Raises:
        UnknownOwnerError: it may be of several.
    """
    try:
        return owners_of_group(place[1], place[0], flow)
    except UnknownOwnerError:
        if len(first.values) != 1 or first.tensors:
            raise
        return Owners()


def named_before(
    place: Call, group: Owners, texts: Mapping[str, Values], statement: cst.BaseStatement, flow: Flow, file: SourceFile
) -> dict[str, Values] | Refusal:
    """Return the modules of a group that is added later as they are called where the engine is made, unless known."""
    found: dict[str, Values] = {}
    for values in group.values.values():
        if any(values <= known for known in texts.values()):
            continue
        name = visible_name(values, statement, file, flow)
        if name is None:
            break
        found[name] = values
    else:
        if not group.tensors:
            return found
    return Refusal(
        Code.PLAIN_ENGINE, place[0], place[1].func,
        "a group is added to the optimizer later, whose parameters are of no module that is known where the engine is "
        "made",
        "make their module before the optimizer, in the same function",
    )  # fmt: skip


def added_groups(
    member: Bound, members: list[Bound], statement: cst.BaseStatement, flow: Flow
) -> tuple[list[cst.Call], list[cst.Call], list[Call]]:
    """Return the calls of ``add_param_group()`` in another function that makes an optimizer and returns it.

    Then those behind which the engine can be made, and those that come later.
    """
    making = {id(each.maker[1]): each.maker[0].function(each.maker[1]) for each in members}
    outside = [f for f in making.values() if f is not None and f is not member.file.function(statement)]
    optimizers, found, later = {member.optimizer for member in members}, list[cst.Call](), list[Call]()
    within: list[cst.Call] = []
    for file, node in flow.attributes("add_param_group"):
        call = file.parent(node)
        if not flow.values(node.value, file) & optimizers:
            continue
        line = file.statement(node)
        if not isinstance(call, cst.Call):
            raise UnknownOwnerError("add_param_group is not called where it is named")
        if any(file.function(node) is function for function in outside):
            within += [call] if file.function(node) is making[id(member.maker[1])] else []
        elif file is member.file and _follows(line, statement, file, frozenset(optimizers), flow):
            found.append(call)
        else:
            later.append((file, call))
    return within, found, later


def _follows(
    line: cst.BaseStatement, made: cst.BaseStatement, file: SourceFile, optimizers: Values, flow: Flow
) -> bool:
    """Return whether a line is in the block where an optimizer is made, with no loop or use of it between."""
    block = file.parent(made)
    lines = getattr(block, "body", ())
    if file.parent(line) is not block or not isinstance(lines, (list, tuple)):
        return False
    first, last = (next(i for i, each in enumerate(lines) if each is one) for one in (made, line))
    between = [node for each in lines[first + 1 : last] for node in walk(each)]
    return first < last and not any(
        isinstance(node, (cst.For, cst.While))
        or (isinstance(node, cst.Arg) and flow.values(node.value, file) & optimizers)
        for node in between
    )
