"""The places where optimizers are made and bound: there an engine can be made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

import libcst as cst

from ds_migrate.plain.dataflow.calls.callers import Callers
from ds_migrate.plain.dataflow.calls.copies import Call
from ds_migrate.plain.dataflow.calls.idle_functions import idle_functions
from ds_migrate.plain.dataflow.classes import PROPERTIES, is_decorated
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Value, Values
from ds_migrate.plain.recognition.creation.bindings import Bound, UnboundError, bindings_of
from ds_migrate.plain.recognition.creation.module_names import modules_at, visible_name
from ds_migrate.plain.recognition.facts import Refusal, Site, Step
from ds_migrate.plain.recognition.origins.origin import Origins
from ds_migrate.plain.recognition.parameters.owners import Owners
from ds_migrate.plain.recognition.parameters.parameter_owners import owners_of, owners_of_group
from ds_migrate.plain.recognition.parameters.parameter_sources import UnknownOwnerError
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import dotted, walk
from ds_migrate.syntax.source import SourceFile

_DEPTH = 3  # calls of calls


def find_sites(
    steps: Sequence[Step], optimizers: Values, flow: Flow, callers: Callers
) -> tuple[list[Site], list[tuple[Refusal, Values]]]:
    """Return where the optimizers are bound, and why some of them cannot be followed, with these."""
    bound: list[Bound] = []
    refusals: list[tuple[Refusal, Values]] = []
    for value in flow.in_order(_made_where_loops_run(steps, optimizers, flow)):
        file, maker = flow.file(value), flow.node(value)
        assert isinstance(maker, cst.Call)
        try:
            bound += bindings_of(value, file, maker, (file, maker), steps, flow, callers, depth=4)
        except UnboundError as error:
            refusal = Refusal(
                Code.PLAIN_ENGINE, error.file, error.node, f"cannot follow the optimizer that is made here: {error}",
                "assign it to a name or to an attribute of self, and make the engine's loop use that",
            )  # fmt: skip
            refusals.append((refusal, frozenset({value})))
    groups: dict[tuple[int, str], list[Bound]] = {}
    new_names: dict[int, str] = {}  # by call: it may return one of several optimizers
    for bound_one in bound:
        one = replace(bound_one, new_name=new_names.setdefault(id(bound_one.target), bound_one.new_name))
        variable = flow.variable(one.target, one.file)
        if one.new_name:
            variable = id(one.file.function(one.target) or one.file.module), one.new_name
        if one.item is not None:
            variable = one.item.variable
        if variable is None:
            refusal = Refusal(
                Code.PLAIN_ENGINE, one.file, one.target,
                "cannot follow the optimizer that is made here: its owner is unknown",
                "assign it to a name or to an attribute of self, and make the engine's loop use that",
            )  # fmt: skip
            refusals.append((refusal, frozenset({one.optimizer})))
            continue
        groups.setdefault(variable, []).append(one)
    sites = []
    for variable, members in groups.items():
        found = _sites_of(variable, members, flow, callers)
        if isinstance(found, Site):
            sites.append(found)
        else:
            refusals.append((found, frozenset(member.optimizer for member in members)))
    return sites, refusals


def _made_where_loops_run(steps: Sequence[Step], optimizers: Values, flow: Flow) -> Values:
    """Return the optimizers without those that functions make which nothing calls, where a step has others too."""
    idle = idle_functions(flow)
    unused = frozenset(value for value in optimizers if idle.hold(flow.node(value), flow.file(value)))
    return optimizers - {value for step in steps if step.optimizers - unused for value in step.optimizers & unused}


def _sites_of(variable: tuple[int, str], members: list[Bound], flow: Flow, callers: Callers) -> Site | Refusal:
    """Return the site of a variable, with those where another optimizer takes the place of the one before."""
    found = []
    for together, statement in _constructions(members):
        site = _site(variable, together, statement, flow, callers)
        if isinstance(site, Refusal):
            return site
        found.append(site)
    first, *again = found
    if not again:
        return first
    if first.item:
        return Refusal(
            Code.PLAIN_ENGINE, first.file, first.target,
            "an optimizer in a container is replaced by another one, which its engine cannot follow",
            "assign the optimizers to names, or to attributes of self",
        )  # fmt: skip
    optimizers = frozenset(value for site in found for value in site.optimizers)
    later = [replace(site, optimizers=optimizers, is_changed=True, parts={}) for site in again]
    return replace(
        first, optimizers=optimizers, of=frozenset(value for site in found for value in site.of),
        makers=[maker for site in found for maker in site.makers], parts={}, again=later, is_changed=True,
    )  # fmt: skip


def _constructions(members: list[Bound]) -> list[tuple[list[Bound], cst.BaseStatement]]:
    """Divide what is bound to a variable: each time what one statement binds, behind which an engine is made."""
    found: list[tuple[list[Bound], cst.BaseStatement]] = []
    for member in sorted(members, key=lambda one: (str(one.file.path), one.file.position(one.statement))):
        file, (before, _) = member.file, found[-1] if found else ([], None)
        is_beside = bool(before) and before[0].file is file
        if is_beside and file.function(before[0].statement) is file.function(member.statement):
            together = [*before, member]
            common = _common_statement([one.statement for one in together], file, dotted(member.target))
            if common is not None:
                found[-1] = together, common
                continue
        found.append(([member], member.statement))
    return found


def _site(
    variable: tuple[int, str], members: list[Bound], statement: cst.BaseStatement, flow: Flow, callers: Callers
) -> Site | Refusal:
    first = members[0]
    file, function = first.file, first.file.function(first.statement)
    if function is not None and any(is_decorated(function, name) for name in PROPERTIES):
        return Refusal(
            Code.PLAIN_ENGINE, file, first.target,
            "the optimizer is made in a property, which may run after the first backward()",
            "make it in __init__(), or in the function that trains",
        )  # fmt: skip
    texts: dict[str, Values] = {}
    tensors: dict[str, Values] = {}
    is_partial = False
    parts: dict[str, Value] = {}
    for member in members:
        maker_file, maker = member.maker
        try:
            added, later = _added_groups(first, members, statement, flow)
            known = flow.copies.calls(member.optimizer)
            owners = owners_of(maker, maker_file, flow, known, _only_calls(maker, maker_file, callers))
            groups = [owners_of_group(call, file, flow) for call in added]
            later_groups = [(place, _owners_of_later(place, owners, flow)) for place in later]
        except UnknownOwnerError as error:
            return _unknown_owner(error, maker, maker_file, flow, callers)
        named = modules_at(owners, member, maker_file, flow)
        if isinstance(named, Refusal):
            return named
        is_partial |= named.is_partial
        tensors |= named.tensors
        if len(members) == 1 and not (named.has_wholes or tensors or added or later):
            parts = {text: part for text, (_, part) in named.parts.items()}
        texts |= named.values
        for group in groups:
            texts |= group.values
            tensors |= group.tensors
            is_partial |= group.is_partial
        for place, group in later_groups:
            before = _named_before(place, group, texts, statement, flow, file)
            if isinstance(before, Refusal):
                return before
            texts |= before
    values = frozenset(v for held in (*texts.values(), *tensors.values()) for v in held)
    last = max([statement, *(file.statement(call) for call in added)], key=file.position)
    calls = [member.maker for member in members]
    optimizers = frozenset(member.optimizer for member in members)
    return Site(
        file, function, first.target, variable, last, calls, optimizers, tuple(texts), values, is_partial, parts,
        tuple(tensors), first.new_name, first.item.text if first.item is not None else "", is_changed=bool(later),
        clause=first.clause,
    )  # fmt: skip


def _unknown_owner(
    error: UnknownOwnerError, maker: cst.Call, file: SourceFile, flow: Flow, callers: Callers
) -> Refusal:
    """Return why the modules of an optimizer are unknown, also where they come from outside of the program."""
    origin = Origins(flow, callers).of(*error.unknown) if error.unknown is not None else None
    if origin is not None and origin.function:
        return Refusal(
            Code.PLAIN_ENGINE, file, maker,
            f"the model of the optimizer comes from outside of these files: {origin.reason}",
            f"name the file that calls {origin.function} too, so that one run converts both",
            Origins(flow, callers).parameters(*error.unknown) if error.unknown and error.is_module else (),
        )  # fmt: skip
    return Refusal(
        Code.PLAIN_ENGINE, file, maker,
        f"cannot determine the modules whose parameters the optimizer holds: {error}",
        "give it module.parameters(), or groups of these",
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


def _owners_of_later(place: Call, first: Owners, flow: Flow) -> Owners:
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


def _named_before(
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


def _added_groups(
    first: Bound, members: list[Bound], statement: cst.BaseStatement, flow: Flow
) -> tuple[list[cst.Call], list[Call]]:
    """Return the calls of ``add_param_group()`` behind which the engine can be made, and those that come later."""
    optimizers, found, later = {member.optimizer for member in members}, list[cst.Call](), list[Call]()
    for file in flow.files.values():
        for node in file.attributes_by_name.get("add_param_group", ()):
            call = file.parent(node)
            if not flow.values(node.value, file) & optimizers:
                continue
            line = file.statement(node)
            if not isinstance(call, cst.Call):
                raise UnknownOwnerError("add_param_group is not called where it is named")
            if file is first.file and _follows(line, statement, file, frozenset(optimizers), flow):
                found.append(call)
            else:
                later.append((file, call))
    return found, later


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
