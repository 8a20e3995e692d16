"""The places where optimizers are made and bound: there an engine can be made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import libcst as cst

from ds_migrate.plain.dataflow.calls import Callers
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, Value, Values, of_kind
from ds_migrate.plain.recognition.containers import Item, item_made_by
from ds_migrate.plain.recognition.facts import Refusal, Site, Step
from ds_migrate.plain.recognition.parameter_owners import (
    Owners,
    UnknownOwnerError,
    owner_at,
    owners_of,
    owners_of_group,
)
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import dotted, targets, walk
from ds_migrate.syntax.source import SourceFile


@dataclass(frozen=True, eq=False)
class _Bound:
    """A call that gives an optimizer, and the name that it is bound to, or will be, or that of its container."""

    file: SourceFile
    target: cst.Name | cst.Attribute | cst.Call
    statement: cst.BaseStatement
    maker: tuple[SourceFile, cst.Call]
    optimizer: Value
    new_name: str = ""
    item: Item | None = None


def find_sites(
    steps: Sequence[Step], optimizers: Values, flow: Flow, callers: Callers
) -> tuple[list[Site], list[Refusal]]:
    """Return where the optimizers are bound, and why some of them cannot be followed."""
    bound: list[_Bound] = []
    refusals: list[Refusal] = []
    for value in flow.in_order(optimizers):
        file, maker = flow.file(value), flow.node(value)
        assert isinstance(maker, cst.Call)
        try:
            bound += _bindings(value, file, maker, (file, maker), steps, flow, callers, depth=4)
        except _UnboundError as error:
            refusals.append(
                Refusal(Code.PLAIN_ENGINE, error.file, error.node,
                f"cannot follow the optimizer that is made here: {error}",
                        "assign it to a name or to an attribute of self, and make the engine's loop use that")
            )  # fmt: skip
    groups: dict[tuple[int, str], list[_Bound]] = {}
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
        found = _site(variable, members, flow)
        if isinstance(found, Site):
            sites.append(found)
        else:
            refusals.append(found)
    return sites, refusals


class _UnboundError(Exception):
    def __init__(self, message: str, file: SourceFile, node: cst.CSTNode) -> None:
        super().__init__(message)
        self.file, self.node = file, node


def _bindings(
    value: Value,
    file: SourceFile,
    node: cst.BaseExpression,
    maker: tuple[SourceFile, cst.Call],
    steps: Sequence[Step],
    flow: Flow,
    callers: Callers,
    depth: int,
    item: int | None = None,
) -> Iterator[_Bound]:
    """Yield the names that a call's result, or an item of it, is bound to in the end."""
    around: cst.CSTNode | None = file.parent(node)
    inner: cst.CSTNode = node
    while isinstance(around, (cst.IfExp, cst.BooleanOperation)):
        inner, around = around, file.parent(around)
    if isinstance(around, cst.Element):
        listed = file.parent(around)
        if isinstance(listed, (cst.Tuple, cst.List)) and item is None and isinstance(file.parent(listed), cst.Return):
            item, around = list(listed.elements).index(around), file.parent(listed)
    if isinstance(around, cst.Return):
        function = file.function(around)
        calls = _calls_for(value, function, flow, callers) if function is not None else ()
        if not calls or depth == 0:
            raise _UnboundError("no call of the function that returns it is in this program", file, around)
        for caller, call in calls:
            yield from _bindings(value, caller, call, maker, steps, flow, callers, depth - 1, item)
        return
    held = item_made_by(inner, file, flow) if item is None else None
    if held is not None:
        yield _Bound(file, held.container, file.statement(node), maker, value, item=held)
        return
    if node is maker[1] and _is_passed_on(node, file):
        kind = (dotted(maker[1].func) or "").rpartition(".")[2].lower()
        name = file.names.fresh("optimizer", f"{kind}_optimizer")
        yield _Bound(file, node, file.statement(node), maker, value, name)
        return
    if isinstance(around, cst.BaseComp):
        raise _UnboundError("a comprehension makes one for each of several modules", file, node)
    found = list(_assigned(around, inner))
    if len(found) != 1:
        raise _UnboundError("it is not assigned to one name", file, node)
    target = found[0]
    if item is not None and isinstance(target, (cst.Name, cst.Attribute)) and dotted(target) is not None:
        key = next((v.key for v in flow.values(target, file) if v.kind is Kind.SEQUENCE), 0)
        held = Item(target, f"{dotted(target)}[{item}]", (key, f"[{item}]"))
        yield _Bound(file, target, file.statement(node), maker, value, item=held)
        return
    if item is not None:
        if not isinstance(target, (cst.Tuple, cst.List)) or item >= len(target.elements):
            raise _UnboundError("it is not assigned to one name", file, node)
        target = target.elements[item].value
    if not isinstance(target, (cst.Name, cst.Attribute)) or dotted(target) is None:
        raise _UnboundError("it is not assigned to one name", file, node)
    function = file.function(node)
    returned = _returned(target, function, file) if function is not None else None
    if function is not None and returned is not None and not _steps_in(steps, function, value):
        calls = _calls_for(value, function, flow, callers)
        if not calls or depth == 0:
            raise _UnboundError("no call of the function that returns it is in this program", file, node)
        for caller, call in calls:
            yield from _bindings(value, caller, call, maker, steps, flow, callers, depth - 1, returned[0])
        return
    yield _Bound(file, target, file.statement(node), maker, value)


def _is_passed_on(maker: cst.BaseExpression, file: SourceFile) -> bool:
    """Return whether an optimizer is made as an argument of another call, and can as well be made right before."""
    inner: cst.CSTNode = maker
    is_argument = isinstance(file.parent(maker), cst.Arg)
    for outer in file.ancestors(maker):
        if isinstance(outer, cst.SimpleStatementLine):
            return is_argument and len(outer.body) == 1
        is_call = isinstance(outer, cst.Call) and inner is not outer.func
        if not (is_call or isinstance(outer, (cst.Arg, cst.Assign, cst.AnnAssign, cst.Return, cst.Expr))):
            return False
        inner = outer
    return False


def _calls_for(
    value: Value, function: cst.FunctionDef, flow: Flow, callers: Callers
) -> Sequence[tuple[SourceFile, cst.Call]]:
    """Return the calls of a function that return a value: the one that a copy has come through, or all."""
    calls = callers.of(function)
    own = [(file, call) for file, call in calls if any(call is one for _, one in flow.copies.calls(value))]
    return own or calls


def _assigned(around: cst.CSTNode | None, value: cst.CSTNode) -> list[cst.BaseExpression]:
    if isinstance(around, (cst.Assign, cst.AnnAssign)) and around.value is value:
        return [target for target in targets(around) if isinstance(target, cst.BaseExpression)]
    return []


def _returned(target: cst.BaseExpression, function: cst.FunctionDef, file: SourceFile) -> tuple[int | None] | None:
    """Return the item of the function's result that a local name is, None as item for the whole."""
    if not isinstance(target, cst.Name):
        return None
    for node in file.nodes(cst.Return, below=function):
        if dotted(node.value) == target.value:
            return (None,)
        if isinstance(node.value, (cst.Tuple, cst.List)):
            for index, element in enumerate(node.value.elements):
                if dotted(element.value) == target.value:
                    return (index,)
    return None


def _steps_in(steps: Sequence[Step], function: cst.FunctionDef, value: Value) -> bool:
    return any(value in step.optimizers and step.function is function for step in steps)


def _site(variable: tuple[int, str], members: list[_Bound], flow: Flow) -> Site | Refusal:
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
            owners = owners_of(maker, maker_file, flow, flow.copies.calls(member.optimizer))
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
        named = _named_at(owners, member, maker_file, flow)
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


def _added_groups(
    first: _Bound, members: list[_Bound], statement: cst.BaseStatement, flow: Flow
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


def _named_at(owners: Owners, member: _Bound, maker_file: SourceFile, flow: Flow) -> dict[str, Values] | Refusal:
    """Return the modules as they are called where the engine is made."""
    file, function = member.file, member.file.function(member.statement)
    if maker_file is file and maker_file.function(member.maker[1]) is function:
        return owners.values
    found: dict[str, Values] = {}
    method = maker_file.function(member.maker[1])
    for text, values in owners.values.items():
        receiver = _receiver_of(method, text, member, flow) or _attribute_of_receiver(
            method, text, values, member, flow
        )
        if receiver:
            found |= receiver
            continue
        name = visible_name(values, member.statement, file, flow)
        if name is None:
            return Refusal(
                Code.PLAIN_ENGINE, file, member.target,
                "the module of the optimizer has no name where the optimizer is bound",
                "give the model a name there: make both in the same function, or return it beside the optimizer",
            )  # fmt: skip
        found[name] = values
    return found


def _receiver_of(method: cst.FunctionDef | None, text: str, member: _Bound, flow: Flow) -> dict[str, Values]:
    """Return the module whose method makes the optimizer, as the call at the site is written on it."""
    if method is None or text not in [p.name.value for p in method.params.params[:1]]:
        return {}
    for call in member.file.nodes(cst.Call, below=member.statement):
        callees = of_kind(flow.values(call.func, member.file), Kind.METHOD)
        if isinstance(call.func, cst.Attribute) and {v.key for v in callees} == {id(method)}:
            try:
                found = owner_at(call.func.value, member.file, flow).values
            except UnknownOwnerError:
                return {}
            return found if all(of_kind(held, Kind.MODULE) == held for held in found.values()) else {}
    return {}


def _attribute_of_receiver(
    method: cst.FunctionDef | None, text: str, values: Values, member: _Bound, flow: Flow
) -> dict[str, Values]:
    """Return ``self.model``, of which a method makes the optimizer, where the call at the site is written on self."""
    receiver, dot, name = text.partition(".")
    if method is None or not dot or receiver not in [p.name.value for p in method.params.params[:1]]:
        return {}
    file = member.maker[0]
    owner_class = next((outer for outer in file.ancestors(method) if isinstance(outer, cst.ClassDef)), None)
    if owner_class is None or flow.classes.is_module(owner_class, file):
        return {}  # a module, of which this is a part
    for call in member.file.nodes(cst.Call, below=member.statement):
        callees = of_kind(flow.values(call.func, member.file), Kind.METHOD)
        if isinstance(call.func, cst.Attribute) and {v.key for v in callees} == {id(method)}:
            owner = dotted(call.func.value)
            return {f"{owner}.{name}": values} if owner is not None else {}
    return {}


def visible_name(values: Values, statement: cst.BaseStatement, file: SourceFile, flow: Flow) -> str | None:
    """Return the name, attribute or item that holds these modules, and no other, before a statement runs."""
    line = file.position(statement)
    function = file.function(statement)
    nodes = [
        node for node in file.nodes(cst.Name, cst.Attribute, below=function or file.module)
        if dotted(node) is not None and file.function(node) is function
        and (file.position(node) <= line or file.statement(node) is statement)
        and not isinstance(file.parent(node), cst.Attribute)
    ]  # fmt: skip
    names = (dotted(node) for node in nodes if flow.values(node, file) == values)
    items = (
        f"{dotted(node)}{item}" for node in nodes if len(flow.values(node, file)) == 1
        for mapping in of_kind(flow.values(node, file), Kind.MAPPING)
        for item, held in flow.literal_items(mapping) if held == values
    )  # fmt: skip
    return next(names, None) or next(items, None)


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
