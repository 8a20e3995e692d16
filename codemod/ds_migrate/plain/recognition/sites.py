"""The places where optimizers are made and bound: there an engine can be made."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import libcst as cst

from ds_migrate.plain.dataflow.calls import Callers
from ds_migrate.plain.dataflow.copies import Call
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Value, Values
from ds_migrate.plain.recognition.bindings import Bound, UnboundError, bindings_of
from ds_migrate.plain.recognition.facts import Refusal, Site, Step
from ds_migrate.plain.recognition.module_names import modules_at
from ds_migrate.plain.recognition.parameter_owners import (
    owners_of,
    owners_of_group,
)
from ds_migrate.plain.recognition.parameter_sources import UnknownOwnerError
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import dotted, walk
from ds_migrate.syntax.source import SourceFile

_DEPTH = 3  # calls of calls


def find_sites(
    steps: Sequence[Step], optimizers: Values, flow: Flow, callers: Callers
) -> tuple[list[Site], list[Refusal]]:
    """Return where the optimizers are bound, and why some of them cannot be followed."""
    bound: list[Bound] = []
    refusals: list[Refusal] = []
    for value in flow.in_order(optimizers):
        file, maker = flow.file(value), flow.node(value)
        assert isinstance(maker, cst.Call)
        try:
            bound += bindings_of(value, file, maker, (file, maker), steps, flow, callers, depth=4)
        except UnboundError as error:
            refusals.append(
                Refusal(Code.PLAIN_ENGINE, error.file, error.node,
                f"cannot follow the optimizer that is made here: {error}",
                        "assign it to a name or to an attribute of self, and make the engine's loop use that")
            )  # fmt: skip
    groups: dict[tuple[int, str], list[Bound]] = {}
    for one in bound:
        variable = flow.variable(one.target, one.file)
        if one.new_name:
            variable = id(one.file.function(one.target) or one.file.module), one.new_name
        if one.item is not None:
            variable = one.item.variable
        if variable is None:
            refusals.append(
                Refusal(Code.PLAIN_ENGINE, one.file, one.target,
                "cannot follow the optimizer that is made here: its owner is unknown",
                        "assign it to a name or to an attribute of self, and make the engine's loop use that")
            )  # fmt: skip
            continue
        groups.setdefault(variable, []).append(one)
    sites = []
    for variable, members in groups.items():
        found = _site(variable, members, flow, callers)
        if isinstance(found, Site):
            sites.append(found)
        else:
            refusals.append(found)
    return sites, refusals


def _site(variable: tuple[int, str], members: list[Bound], flow: Flow, callers: Callers) -> Site | Refusal:
    first = members[0]
    file, function = first.file, first.file.function(first.statement)
    if any(m.file is not file or file.function(m.statement) is not function for m in members):
        return Refusal(
            Code.PLAIN_ENGINE, first.file, first.target, "the optimizer is made in several functions",
            "make it in one function",
        )  # fmt: skip
    statement = _common_statement([m.statement for m in members], file, dotted(first.target))
    if statement is None:
        return made_anew(file, first.target)
    added = _added_groups(first, members, statement, flow)
    if isinstance(added, Refusal):
        return added
    texts: dict[str, Values] = {}
    tensors: dict[str, Values] = {}
    is_partial = False
    parts: dict[str, Value] = {}
    for member in members:
        maker_file, maker = member.maker
        try:
            known = flow.copies.calls(member.optimizer)
            owners = owners_of(maker, maker_file, flow, known, _only_calls(maker, maker_file, callers))
            groups = [owners_of_group(call, file, flow) for call in added]
        except UnknownOwnerError as error:
            return Refusal(
                Code.PLAIN_ENGINE, maker_file, maker,
                f"cannot determine the modules whose parameters the optimizer holds: {error}",
                "give it module.parameters(), or groups of these",
            )  # fmt: skip
        is_partial |= owners.is_partial
        tensors |= owners.tensors
        is_here = maker_file is file and maker_file.function(maker) is function
        if is_here and len(members) == 1 and not (owners.has_wholes or tensors or added):
            parts = {text: part for text, (_, part) in owners.parts.items()}
        named = modules_at(owners, member, maker_file, flow)
        if isinstance(named, Refusal):
            return named
        texts |= named
        for group in groups:
            texts |= group.values
            tensors |= group.tensors
            is_partial |= group.is_partial
    values = frozenset(v for held in (*texts.values(), *tensors.values()) for v in held)
    last = max([statement, *(file.statement(call) for call in added)], key=file.position)
    calls = [member.maker for member in members]
    optimizers = frozenset(member.optimizer for member in members)
    return Site(
        file, function, first.target, variable, last, calls, optimizers, tuple(texts), values, is_partial, parts,
        tuple(tensors), first.new_name, first.item.text if first.item is not None else "",
    )  # fmt: skip


def _only_calls(maker: cst.Call, file: SourceFile, callers: Callers) -> list[Call]:
    """Return the calls that lead to a call, the innermost first, as long as there is just one."""
    found: list[Call] = []
    function = file.function(maker)
    while function is not None and len(calls := callers.of(function)) == 1 and len(found) < _DEPTH:
        found += calls
        ((file, call),) = calls
        function = file.function(call)
    return found


def _added_groups(
    first: Bound, members: list[Bound], statement: cst.BaseStatement, flow: Flow
) -> list[cst.Call] | Refusal:
    """Return the calls of ``add_param_group()`` behind which the engine can be made."""
    optimizers, found = {member.optimizer for member in members}, []
    for file in flow.files.values():
        for node in file.attributes_by_name.get("add_param_group", ()):
            call = file.parent(node)
            if not flow.values(node.value, file) & optimizers:
                continue
            line = file.statement(node)
            is_next = file is first.file and _follows(line, statement, file, frozenset(optimizers), flow)
            if not is_next or not isinstance(call, cst.Call):
                return Refusal(
                    Code.PLAIN_ENGINE, file, node,
                    "a group of parameters is added to the optimizer later, and an engine keeps those that it has",
                    "give the optimizer all groups where it is made, with a learning rate of 0 at first",
                )  # fmt: skip
            found.append(call)
    return found


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


def made_anew(file: SourceFile, target: cst.CSTNode) -> Refusal:
    """Return that an optimizer is replaced by another one, which an engine cannot follow."""
    return Refusal(
        Code.PLAIN_ENGINE, file, target, "the optimizer is made anew during training, and an engine keeps its own",
        "make one optimizer, and change its param_groups",
    )  # fmt: skip


def _common_statement(
    statements: list[cst.BaseStatement], file: SourceFile, name: str | None
) -> cst.BaseStatement | None:
    """Return the statement after which all of these have run: the last one, or the ``if`` with all in its branches.

    None where one runs after another that its engine was made from: the optimizer of this name is used between them.
    """
    statements = list({id(statement): statement for statement in statements}.values())
    if len(statements) == 1:
        return statements[0]
    chains = [[s, *file.ancestors(s)] for s in statements]
    shared = [node for node in chains[0] if all(any(node is other for other in chain) for chain in chains[1:])]
    for node in shared:
        if isinstance(node, cst.If):
            return _outermost_if(node, file)
        if isinstance(node, (cst.For, cst.While, cst.FunctionDef, cst.Module)):
            break
    block = shared[0]
    if not isinstance(block, (cst.IndentedBlock, cst.Module)):
        return None
    ways = [list(takewhile(lambda node: node is not block, chain)) for chain in chains]
    if not all(isinstance(node, (cst.If, cst.Else, cst.IndentedBlock)) for way in ways for node in way[1:]):
        return None
    made = [next(i for i, line in enumerate(block.body) if line is way[-1]) for way in ways]
    between = [line for i, line in enumerate(block.body) if min(made) < i < max(made) and i not in made]
    last = block.body[max(made)]
    is_used = any(dotted(node) == name for line in between for node in walk(line))
    return None if is_used or not isinstance(last, cst.BaseStatement) else last


def _outermost_if(node: cst.If, file: SourceFile) -> cst.If:
    while isinstance(outer := file.parent(node), cst.If) and outer.orelse is node:
        node = outer
    return node
