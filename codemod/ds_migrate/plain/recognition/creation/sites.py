"""The places where optimizers are made and bound: there an engine can be made."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile

import libcst as cst

from ds_migrate.plain.dataflow.calls.callers import Callers
from ds_migrate.plain.dataflow.calls.copies import Call
from ds_migrate.plain.dataflow.calls.idle_functions import idle_functions
from ds_migrate.plain.dataflow.classes import PROPERTIES, is_decorated
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, Value, Values, of_kind
from ds_migrate.plain.recognition.creation.added_groups import added_groups, named_before, owners_of_later
from ds_migrate.plain.recognition.creation.bindings import Bound, UnboundError, bindings_of
from ds_migrate.plain.recognition.creation.module_names import modules_at
from ds_migrate.plain.recognition.facts import Refusal, Site, Step
from ds_migrate.plain.recognition.origins.origin import Origins
from ds_migrate.plain.recognition.parameters.module_values import ASKED_OF_MODULES
from ds_migrate.plain.recognition.parameters.parameter_owners import owners_of, owners_of_group
from ds_migrate.plain.recognition.parameters.parameter_sources import UnknownOwnerError
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.branches import head_of, parting
from ds_migrate.syntax.nodes import dotted, set_values, walk
from ds_migrate.syntax.source import SourceFile

_DEPTH = 3  # calls of calls


def find_sites(
    steps: Sequence[Step], optimizers: Values, flow: Flow
) -> tuple[list[Site], list[tuple[Refusal, Values]]]:
    """Return where the optimizers are bound, and why some of them cannot be followed, with these."""
    bound: list[Bound] = []
    refusals: list[tuple[Refusal, Values]] = []
    for value in flow.in_order(_made_where_loops_run(steps, optimizers, flow)):
        file, maker = flow.file(value), flow.node(value)
        assert isinstance(maker, cst.Call)
        try:
            bound += bindings_of(value, file, maker, (file, maker), steps, flow, depth=4)
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
        found = _sites_of(variable, members, steps, flow)
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


def _sites_of(variable: tuple[int, str], members: list[Bound], steps: Sequence[Step], flow: Flow) -> Site | Refusal:
    """Return the site of a variable, with those where another optimizer takes the place of the one before."""
    found = []
    optimizers = frozenset(member.optimizer for member in members)
    own = [step for step in steps if step.optimizers & optimizers]
    for together, end in _constructions(members, own, flow):
        statement = _behind_other_values(together[0], end, own, flow)
        site = _site(variable, together, statement, flow)
        if isinstance(site, Refusal):
            return site
        found.append(replace(site, may_be_given=statement is not end))
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


def _constructions(
    members: list[Bound], steps: Sequence[Step], flow: Flow
) -> list[tuple[list[Bound], cst.BaseStatement]]:
    """Divide what is bound to a variable: each time what one statement binds, behind which an engine is made."""
    found: list[tuple[list[Bound], cst.BaseStatement]] = []
    for member in sorted(members, key=lambda one: (str(one.file.path), one.file.position(one.statement))):
        file, (before, _) = member.file, found[-1] if found else ([], None)
        is_beside, function = bool(before) and before[0].file is file, file.function(member.statement)
        if is_beside and file.function(before[0].statement) is function:
            together = [*before, member]
            uses = {id(step.node) for step in steps if step.file is file and step.function is function}
            uses |= {id(call) for step in steps for call in flow.callers.leading_to(step.function, file, function)}
            common = _common_statement([one.statement for one in together], file, dotted(member.target), uses)
            if common is not None:
                found[-1] = together, common
                continue
        found.append(([member], member.statement))
    return found


def _behind_other_values(
    member: Bound, statement: cst.BaseStatement, steps: Sequence[Step], flow: Flow
) -> cst.BaseStatement:
    """Return the statement behind which an engine is made: the ``if`` whose other way has the optimizer from elsewhere.

    It comes from a checkpoint that holds it whole, ``optimizer = checkpoint["optimizer"]``, or it is an argument that
    no call in the program gives: ``if optimizer is None: optimizer = Adam(...)``.
    """
    file, function = member.file, member.file.function(statement)
    scope = function if function is not None else file.module
    uses = {id(step.node) for step in steps if step.file is file}
    uses |= {id(call) for step in steps for call in flow.callers.leading_to(step.function, file, function)}
    for around in _ways_of_others(member, statement, scope, flow):
        if not _is_stepped(around, uses):
            return head_of(around, file)
    return statement


def _ways_of_others(member: Bound, statement: cst.BaseStatement, scope: cst.CSTNode, flow: Flow) -> Iterator[cst.If]:
    """Yield each ``if`` around a statement whose other way leaves the optimizer that something else has made."""
    file, name = member.file, dotted(member.target)
    is_given = isinstance(member.target, cst.Name) and bool(Origins(flow).of(member.target, file).function)
    for line in file.nodes(cst.Assign, cst.AnnAssign, below=scope):
        for target, value in set_values(line):
            if dotted(target) == name and value is not None and _is_from_elsewhere(value, file, flow):
                around = parting(file, statement, line)
                if isinstance(around, cst.If):
                    yield around
                is_given |= around is None
    if is_given:
        for outer in takewhile(lambda node: node is not scope, file.ancestors(statement)):
            if isinstance(outer, cst.If) and any(dotted(part) == name for part in walk(outer.test)):
                yield outer


def _is_from_elsewhere(value: cst.BaseExpression, file: SourceFile, flow: Flow) -> bool:
    if isinstance(value, cst.Subscript):
        return True
    is_made = bool(of_kind(flow.values(value, file), Kind.OPTIMIZER))
    return not is_made and bool(Origins(flow).of(value, file).function)


def _site(variable: tuple[int, str], members: list[Bound], statement: cst.BaseStatement, flow: Flow) -> Site | Refusal:
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
            within, added, later = added_groups(member, members, statement, flow)
            known = flow.copies.calls(member.optimizer)
            owners = owners_of(maker, maker_file, flow, known, _only_calls(maker, maker_file, flow.callers), within)
            groups = [owners_of_group(call, file, flow) for call in added]
            later_groups = [(place, owners_of_later(place, owners, flow)) for place in later]
        except UnknownOwnerError as error:
            return _unknown_owner(error, maker, maker_file, flow)
        named = modules_at(owners, member, maker_file, flow)
        if isinstance(named, Refusal):
            return named
        is_partial |= named.is_partial
        _add(named.tensors, tensors)
        if len(members) == 1 and not (named.has_wholes or tensors or added or later):
            parts = {text: part for text, (_, part) in named.parts.items()}
        _add(named.values, texts)
        for group in groups:
            _add(group.values, texts)
            _add(group.tensors, tensors)
            is_partial |= group.is_partial
        for place, group in later_groups:
            before = named_before(place, group, texts, statement, flow, file)
            if isinstance(before, Refusal):
                return before
            _add(before, texts)
    values = frozenset(v for held in (*texts.values(), *tensors.values()) for v in held)
    last = max([statement, *(file.statement(call) for call in added)], key=file.position)
    calls = [member.maker for member in members]
    optimizers = frozenset(member.optimizer for member in members)
    return Site(
        file, function, first.target, variable, last, calls, optimizers, tuple(texts), values, is_partial, parts,
        tuple(tensors), first.new_name, first.item.text if first.item is not None else "", is_changed=bool(later),
        clause=first.clause,
    )  # fmt: skip


def _add(values: dict[str, Values], known: dict[str, Values]) -> None:
    """Add values by their names: calls of one function may give other modules for the same parameter."""
    for name, held in values.items():
        known[name] = known.get(name, frozenset()) | held


def _unknown_owner(error: UnknownOwnerError, maker: cst.Call, file: SourceFile, flow: Flow) -> Refusal:
    """Return why the modules of an optimizer are unknown, also where they come from outside of the program."""
    unknown = (_whole(*error.unknown), error.unknown[1]) if error.unknown is not None else None
    origin = Origins(flow).of(*unknown) if unknown is not None else None
    if origin is not None and origin.function:
        return Refusal(
            Code.PLAIN_ENGINE, file, maker,
            f"the model of the optimizer comes from outside of these files: {origin.reason}",
            f"name the file that calls {origin.function} too, so that one run converts both",
            Origins(flow).parameters(*unknown) if unknown is not None and error.is_module else (),
        )  # fmt: skip
    return Refusal(
        Code.PLAIN_ENGINE, file, maker,
        f"cannot determine the modules whose parameters the optimizer holds: {error}",
        "give it module.parameters(), or groups of these",
    )  # fmt: skip


def _whole(node: cst.BaseExpression, file: SourceFile) -> cst.BaseExpression:
    """Return the name that a part is of, where its function asks that for all parameters, or for its state."""
    root = node
    while isinstance(root, cst.Attribute):
        root = root.value
    function = file.function(node)
    used = file.nodes(cst.Attribute, below=function) if function is not None and isinstance(root, cst.Name) else ()
    is_module = any(n.attr.value in (*ASKED_OF_MODULES, "state_dict") and dotted(n.value) == dotted(root) for n in used)
    return root if is_module else node


def _only_calls(maker: cst.Call, file: SourceFile, callers: Callers) -> list[Call]:
    """Return the calls that lead to a call, the innermost first, as long as there is just one."""
    found: list[Call] = []
    function = file.function(maker)
    while function is not None and len(calls := callers.of(function)) == 1 and len(found) < _DEPTH:
        found += calls
        ((file, call),) = calls
        function = file.function(call)
    return found


def _common_statement(
    statements: list[cst.BaseStatement], file: SourceFile, name: str | None, uses: Collection[int]
) -> cst.BaseStatement | None:
    """Return the statement after which all of these have run: the last one, or the ``if`` with all in its branches.

    None where one runs after another that its engine was made from: the optimizer of this name is used between them.
    None, too, where branches step it themselves, or call what does: each makes its engine.

    Args:
        uses: the steps of the optimizers, and the calls that lead to these, by their identity.
    """
    statements = list({id(statement): statement for statement in statements}.values())
    if len(statements) == 1:
        return statements[0]
    chains = [[s, *file.ancestors(s)] for s in statements]
    shared = [node for node in chains[0] if all(any(node is other for other in chain) for chain in chains[1:])]
    for node in shared:
        if isinstance(node, cst.If):
            head = head_of(node, file)
            if not _is_stepped(head, uses):
                return head
            break
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
    is_used |= any(_is_stepped(block.body[i], uses) for i in made)
    return None if is_used or not isinstance(last, cst.BaseStatement) else last


def _is_stepped(statement: cst.CSTNode, uses: Collection[int]) -> bool:
    return any(id(node) in uses for node in walk(statement))
