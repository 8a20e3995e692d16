"""The names that optimizers are bound to, through the functions that return them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from ds_migrate.plain.dataflow.containers.mappings import literal_index
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.scopes import names_in
from ds_migrate.plain.dataflow.values import Kind, Value, of_kind
from ds_migrate.plain.recognition.creation.containers import Item, clause_of, item_made_by
from ds_migrate.plain.recognition.facts import Step
from ds_migrate.syntax.nodes import dotted, last_name, targets, walk
from ds_migrate.syntax.source import SourceFile

_STATEMENTS = (cst.Assign, cst.AnnAssign, cst.Return, cst.Expr)
_IN_ORDER = (*_STATEMENTS, cst.Arg, cst.DictElement, cst.Dict, cst.Element, cst.Tuple, cst.List, cst.Attribute)


@dataclass(frozen=True, eq=False)
class Bound:
    """A call that gives an optimizer, and the name that it is bound to, or will be, or that of its container.

    Attributes:
        call_statement: the statement of the call, where another one binds what it returned.
        clause: the loop that goes through all optimizers of a comprehension.
    """

    file: SourceFile
    target: cst.Name | cst.Attribute | cst.Call
    statement: cst.BaseStatement
    maker: tuple[SourceFile, cst.Call]
    optimizer: Value
    new_name: str = ""
    item: Item | None = None
    call_statement: cst.BaseStatement | None = None
    clause: str = ""


class UnboundError(Exception):
    def __init__(self, message: str, file: SourceFile, node: cst.CSTNode) -> None:
        super().__init__(message)
        self.file, self.node = file, node


def bindings_of(
    value: Value,
    file: SourceFile,
    node: cst.BaseExpression,
    maker: tuple[SourceFile, cst.Call],
    steps: Sequence[Step],
    flow: Flow,
    depth: int,
    item: int | None = None,
) -> Iterator[Bound]:
    """Yield the names that a call's result, or an item of it, is bound to in the end."""
    inner = _choice_with(node, file)
    around: cst.CSTNode | None = file.parent(inner)
    if isinstance(around, cst.Element):
        listed = file.parent(around)
        if isinstance(listed, (cst.Tuple, cst.List)) and item is None and isinstance(file.parent(listed), cst.Return):
            item, around = list(listed.elements).index(around), file.parent(listed)
    if isinstance(around, cst.Return):
        function = file.function(around)
        calls = _calls_for(value, function, flow) if function is not None else ()
        if not calls or depth == 0:
            raise UnboundError("no call of the function that returns it is in this program", file, around)
        for caller, call in calls:
            yield from bindings_of(value, caller, call, maker, steps, flow, depth - 1, item)
        return
    held = item_made_by(inner, file, flow) if item is None else None
    if held is not None:
        yield Bound(file, held.container, file.statement(node), maker, value, item=held)
        return
    if isinstance(node, cst.Call) and _is_passed_on(node, file):
        kind = last_name(node.func).lower() if node is maker[1] else "made"
        name = file.names.fresh("optimizer", f"{kind}_optimizer")
        yield Bound(file, node, file.statement(node), maker, value, name)
        return
    if isinstance(around, cst.BaseComp):
        repeated = clause_of(around, file, flow) if item is None else None
        if repeated is None:
            raise UnboundError("a comprehension makes one for each of several modules", file, node)
        made_for, clause = repeated
        yield Bound(file, made_for.container, file.statement(node), maker, value, item=made_for, clause=clause)
        return
    found = _assigned(around, inner, file)
    if len(found) != 1:
        raise UnboundError("it is not assigned to one name", file, node)
    target = found[0]
    unpacked = list(_unpacked(target, item, file)) if item is not None and isinstance(target, cst.Name) else []
    if unpacked:
        made = file.statement(node)
        yield from (Bound(file, name, file.statement(name), maker, value, call_statement=made) for name in unpacked)
        return
    if item is not None and isinstance(target, (cst.Name, cst.Attribute)) and dotted(target) is not None:
        key = next((v.key for v in flow.in_order(of_kind(flow.values(target, file), Kind.SEQUENCE))), 0)
        held = Item(target, f"{dotted(target)}[{item}]", (key, f"[{item}]"))
        yield Bound(file, target, file.statement(node), maker, value, item=held)
        return
    if item is not None:
        if not isinstance(target, (cst.Tuple, cst.List)) or item >= len(target.elements):
            raise UnboundError("it is not assigned to one name", file, node)
        target = target.elements[item].value
    if not isinstance(target, (cst.Name, cst.Attribute)) or dotted(target) is None:
        raise UnboundError("it is not assigned to one name", file, node)
    function = file.function(node)
    returned = _returned(target, function, file) if function is not None else None
    if (
        function is not None
        and returned is not None
        and not any(value in step.optimizers and step.function is function for step in steps)
    ):
        calls = _calls_for(value, function, flow)
        if not calls or depth == 0:
            raise UnboundError("no call of the function that returns it is in this program", file, node)
        for caller, call in calls:
            yield from bindings_of(value, caller, call, maker, steps, flow, depth - 1, returned[0])
        return
    yield Bound(file, target, file.statement(node), maker, value)


def _choice_with(node: cst.CSTNode, file: SourceFile) -> cst.CSTNode:
    """Return the expression that takes a value or another one: ``Adam(p) if a else SGD(p)``, ``{"a": Adam(p)}[name]``.

    Of a comprehension, it takes one that is made of the same modules as the others.
    """
    around = file.parent(node)
    if isinstance(around, (cst.IfExp, cst.BooleanOperation)):
        return _choice_with(around, file)
    container: cst.CSTNode | None = around
    if isinstance(around, (cst.Element, cst.DictElement)):
        container = file.parent(around)
    elif isinstance(around, (cst.ListComp, cst.DictComp)):
        args = [part for arg in node.args for part in walk(arg)] if isinstance(node, cst.Call) else []
        given = {part.value for part in args if isinstance(part, cst.Name)}
        if around.for_in.inner_for_in is not None or not given.isdisjoint(names_in(around.for_in.target)):
            return node
    else:
        return node
    taken = file.parent(container) if container is not None else None
    return _choice_with(taken, file) if isinstance(taken, cst.Subscript) and taken.value is container else node


def _is_passed_on(maker: cst.BaseExpression, file: SourceFile) -> bool:
    """Return whether an optimizer is made for another call, or a dict that is returned, and can as well be before."""
    inner: cst.CSTNode = maker
    is_argument = isinstance(file.parent(maker), (cst.Arg, cst.DictElement))
    for outer in file.ancestors(maker):
        if isinstance(outer, cst.SimpleStatementLine):
            return is_argument
        is_call = isinstance(outer, cst.Call) and (inner is not outer.func or isinstance(inner, cst.Attribute))
        if not (is_call or isinstance(outer, _IN_ORDER)):
            return False
        inner = outer
    return False


def _calls_for(value: Value, function: cst.FunctionDef, flow: Flow) -> Sequence[tuple[SourceFile, cst.Call]]:
    """Return the calls of a function that return a value: the one that a copy has come through, or all."""
    calls = flow.callers.of(function)
    own = [(file, call) for file, call in calls if any(call is one for _, one in flow.copies.calls(value))]
    return own or calls


def _assigned(around: cst.CSTNode | None, value: cst.CSTNode, file: SourceFile) -> list[cst.BaseExpression]:
    if isinstance(around, cst.Element):  # of a, b = first(), second()
        listed = file.parent(around)
        found = _assigned(file.parent(listed), listed, file) if isinstance(listed, (cst.Tuple, cst.List)) else []
        if len(found) != 1 or not isinstance(found[0], (cst.Tuple, cst.List)):
            return []
        assert isinstance(listed, (cst.Tuple, cst.List))
        names, values = found[0].elements, listed.elements
        is_starred = any(isinstance(each, cst.StarredElement) for each in (*names, *values))
        return [] if is_starred or len(names) != len(values) else [names[list(values).index(around)].value]
    if isinstance(around, (cst.Assign, cst.AnnAssign)) and around.value is value:
        return [target for target in targets(around) if isinstance(target, cst.BaseExpression)]
    return []


def _unpacked(target: cst.Name, item: int | None, file: SourceFile) -> Iterator[cst.Name | cst.Attribute]:
    """Yield the names that an item of a local name is assigned to, as in ``optimizer, schedule = made``."""
    for node in file.nodes(cst.Assign, below=file.function(target) or file.module):
        (taker,) = targets(node)[:1]
        if isinstance(node.value, cst.Subscript) and dotted(node.value.value) == target.value:
            found = taker if literal_index(node.value) == item else None
        elif dotted(node.value) == target.value and isinstance(taker, cst.Tuple) and item is not None:
            found = taker.elements[item].value if item < len(taker.elements) else None
        else:
            found = None
        if isinstance(found, (cst.Name, cst.Attribute)) and dotted(found) is not None:
            yield found


def _returned(target: cst.BaseExpression, function: cst.FunctionDef, file: SourceFile) -> tuple[int | None] | None:
    """Return the item of the function's result that a local name is, None as item for the whole."""
    if not isinstance(target, cst.Name):
        return None
    for value in file.returned(function):
        if dotted(value) == target.value:
            return (None,)
        if isinstance(value, (cst.Tuple, cst.List)):
            for index, element in enumerate(value.elements):
                if dotted(element.value) == target.value:
                    return (index,)
    return None
