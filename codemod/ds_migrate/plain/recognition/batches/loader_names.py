"""The names that training loops know their loaders by, where one call makes the loaders of evaluation too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import libcst as cst

from ds_migrate.plain.dataflow.branches.dead_branches import leaves_out
from ds_migrate.plain.dataflow.branches.written_rounds import Bindings, is_left_out
from ds_migrate.plain.dataflow.calls.callers import is_repeated
from ds_migrate.plain.dataflow.calls.returned_tuples import is_plain_tuple
from ds_migrate.plain.dataflow.values import Kind, Values, of_kind
from ds_migrate.plain.recognition.batches.batch_sources import sources_of
from ds_migrate.plain.recognition.batches.loader_items import are_texts, assignments, item_name
from ds_migrate.plain.recognition.batches.loader_rounds import LoaderName, in_rounds, is_under_condition
from ds_migrate.plain.recognition.batches.loaders import loaders_of, parts_of
from ds_migrate.plain.recognition.facts import LoopFacts, Step
from ds_migrate.syntax.module_start import asks_for_main
from ds_migrate.syntax.nodes import dotted, walk
from ds_migrate.syntax.source import SourceFile

_DEPTH = 8


class _UnknownNameError(Exception):
    pass


def names_of(maker: cst.Call, steps: Sequence[Step], facts: LoopFacts) -> list[LoaderName]:
    """Return the names that loaders of a call have where they train; none where some of them cannot be followed."""
    found: dict[tuple[int, str], LoaderName] = {}
    try:
        for step in steps:
            for file, node in sources_of(step.file, step.node, facts, depth=3):
                names = _names(node, file, step.node, maker, facts, _DEPTH)
                for name in _in_rounds(names, step.node, step.file, facts) if file is step.file else names:
                    known = found.setdefault((id(name.statement), name.text), name)
                    if known.condition != name.condition:
                        return []
    except _UnknownNameError:
        return []
    return list(found.values())


def names_in_loop(loop: cst.For, file: SourceFile, maker: cst.Call, facts: LoopFacts) -> list[LoaderName]:
    """Return the names that loaders of a call have where a loop runs over them; none where one cannot be followed."""
    try:
        return list(_names(loop.iter, file, loop, maker, facts, _DEPTH))
    except _UnknownNameError:
        return []


def may_evaluate(maker: cst.Call, file: SourceFile, steps: Sequence[Step], facts: LoopFacts) -> bool:
    """Return whether a call may make loaders that do not train: it runs often, and not each time for the steps."""
    function = file.function(maker)
    if function is not None and any(_is_for_each(caller, call) for caller, call in facts.flow.callers.of(function)):
        return True
    is_several = is_repeated(file, maker) or (function is not None and facts.flow.callers.has_several(function))
    if not (is_several or _serves_several(maker, file, steps, facts)):
        return False
    loops = [outer for outer in file.ancestors(maker) if isinstance(outer, cst.For)]
    near = [step for step in steps if step.file is file and step.function is file.function(maker)]
    inside = [step for step in near if not loops or any(outer is loops[0] for outer in file.ancestors(step.node))]
    is_statement = isinstance(file.parent(maker), cst.Assign)
    return not (inside and is_statement and not any(_asks_for_phase(step) for step in inside))


def _is_for_each(file: SourceFile, call: cst.CSTNode) -> bool:
    """Return whether a call is made for each of several things by name, such as ``"train"`` and ``"val"``."""
    return any(
        isinstance(outer, cst.CompFor | cst.For) and are_texts(outer.iter)
        for around in file.ancestors(call)
        for outer in [getattr(around, "for_in", around)]
    )


def _serves_several(maker: cst.Call, file: SourceFile, steps: Sequence[Step], facts: LoopFacts) -> bool:
    """Return whether a call is in a function that trains nothing, for a function that several others call."""
    function, seen = file.function(maker), set[int]()
    while function is not None and id(function) not in seen:
        seen.add(id(function))
        if any(facts.flow.callers.reaches(id(function), step.function) for step in steps):
            return False
        if facts.flow.callers.has_several(function):
            return True
        ((caller, call), *_) = facts.flow.callers.of(function) or ((file, None),)
        function = caller.function(call) if call is not None else None
    return False


def _holds(maker: cst.Call, values: Values, facts: LoopFacts) -> bool:
    """Return whether one of these values comes from a call, in whichever copy."""
    return any(facts.flow.node(value) is maker for value in of_kind(values, Kind.LOADER))


def _asks_for_phase(step: Step) -> bool:
    """Return whether a step depends on what the loop around it is for: a name, or one that is compared with a text."""
    for outer in step.file.ancestors(step.node):
        if isinstance(outer, cst.FunctionDef) or asks_for_main(outer):
            break
        if isinstance(outer, cst.If) and (
            isinstance(outer.test, (cst.Name, cst.UnaryOperation))
            or any(isinstance(node, cst.SimpleString) for node in walk(outer.test))
        ):
            return True
    return False


def _names(
    node: cst.BaseExpression,
    file: SourceFile,
    inner: cst.CSTNode,
    maker: cst.Call,
    facts: LoopFacts,
    depth: int,
    above: frozenset[str] = frozenset(),
) -> Iterator[LoaderName]:
    """Yield the names from which an expression has a loader.

    Args:
        inner: what runs for each of its batches.
        above: names of the same scope that are being followed, as in ``bar = tqdm(bar)``.
    """
    if not _holds(maker, loaders_of(node, file, facts.flow), facts):
        return
    is_wrapped = of_kind(facts.flow.values(node, file), Kind.INSTANCE)  # shard() takes no object that has a loader
    if isinstance(node, cst.Subscript) and depth and not is_wrapped:
        yield _known(item_name(node, file, inner, facts))
        return
    if depth == 0 or is_wrapped or not isinstance(node, (cst.Call, cst.Name, cst.Attribute)):
        raise _UnknownNameError
    if isinstance(node, cst.Call):
        parts = parts_of(node, file, facts.flow)  # of enumerate(loader), tqdm(loader), loader.__iter__()
        if node is maker or not parts or _holds(maker, facts.flow.values(node, file), facts):
            raise _UnknownNameError
        for part in parts:
            yield from _names(part, file, inner, maker, facts, depth - 1, above)
        return
    if dotted(node) in above:
        return
    function = facts.flow.scopes(file).function_of_parameter(node)
    if function is not None:
        yield from _of_parameter(function, str(dotted(node)), file, inner, maker, facts, depth)
        return
    scope = facts.flow.scopes(file).owner(node.value, node) if isinstance(node, cst.Name) else None
    assigned = list(assignments(node, scope, file, facts))
    if not assigned:
        raise _UnknownNameError
    for other, assign, text in assigned:
        statement = other.parent(assign)
        if isinstance(assign.value, cst.Call) and isinstance(statement, cst.SimpleStatementLine):
            if assign.value is maker:
                raise _UnknownNameError
            if _holds(maker, facts.flow.values(assign.value, other), facts) or isinstance(
                assign.targets[0].target, (cst.Tuple, cst.List)
            ):
                inside = list(_names_inside(assign, text, other, maker, facts, depth - 1))
                yield from inside or [LoaderName(other, statement, text)]
                continue
        if isinstance(statement, cst.SimpleStatementLine) and _is_unpacked(assign, text, other, maker, facts):
            yield LoaderName(other, statement, text)
            continue
        if isinstance(assign.value, cst.Subscript):
            yield _known(item_name(assign.value, other, inner, facts))
            continue
        followed = above | {text} if other is file else frozenset({text})
        yield from _names(assign.value, other, inner, maker, facts, depth - 1, followed)


def _is_unpacked(assign: cst.Assign, text: str, file: SourceFile, maker: cst.Call, facts: LoopFacts) -> bool:
    """Return whether one of several names in a line gets a loader: of a list that is made, or of a call beside others.

    A loader that the line itself makes is divided there.
    """
    target = assign.targets[0].target
    if not isinstance(target, cst.Tuple):
        return False
    names = [dotted(element.value) for element in target.elements]
    if is_plain_tuple(assign.value, len(names)):
        value = assign.value.elements[names.index(text)].value
        is_made = isinstance(value, cst.Call) and value is not maker
        return is_made and _holds(maker, facts.flow.values(value, file), facts)
    made = facts.flow.values(assign.value, file)
    return bool(made) and made == of_kind(made, Kind.SEQUENCE)


def _known(name: LoaderName | None) -> LoaderName:
    if name is None:
        raise _UnknownNameError
    return name


def _names_inside(
    assign: cst.Assign, text: str, file: SourceFile, maker: cst.Call, facts: LoopFacts, depth: int
) -> Iterator[LoaderName]:
    """Yield the names that a loader has in the function that returns it beside others, which may ask for its length.

    Nothing where other calls of the function would have its share too, or the name cannot be followed.
    """
    target = assign.targets[0].target
    callees = of_kind(facts.flow.values(getattr(assign.value, "func", assign.value), file), Kind.FUNCTION)
    if not isinstance(target, cst.Tuple) or len(callees) != 1:
        return
    (callee,) = callees
    other, function = facts.flow.file(callee), facts.flow.node(callee)
    index = [dotted(element.value) for element in target.elements].index(text)
    returned = other.returned(function)
    if not isinstance(function, cst.FunctionDef) or facts.flow.callers.has_several(function) or len(returned) != 1:
        return
    value = returned[0]
    if isinstance(value, cst.Tuple) and len(value.elements) == len(target.elements):
        with suppress(_UnknownNameError):
            item = value.elements[index].value
            if isinstance(item, cst.Name):
                yield from list(_names(item, other, value, maker, facts, depth))


def _of_parameter(
    function: cst.FunctionDef,
    name: str,
    file: SourceFile,
    inner: cst.CSTNode,
    maker: cst.Call,
    facts: LoopFacts,
    depth: int,
) -> Iterator[LoaderName]:
    calls = facts.flow.callers.of(function)
    if not calls:
        raise _UnknownNameError
    for caller, call in calls:
        if leaves_out(call, caller, function, inner, file, facts.flow):
            continue
        arg = facts.flow.given(call, function, name, caller)
        if arg is None or arg.star:
            raise _UnknownNameError
        names = _names(arg.value, caller, call, maker, facts, depth - 1)
        yield from _in_rounds(names, call, caller, facts, (function, inner, file))


def _in_rounds(
    names: Iterable[LoaderName],
    node: cst.CSTNode,
    file: SourceFile,
    facts: LoopFacts,
    below: tuple[cst.FunctionDef, cst.CSTNode, SourceFile] | None = None,
) -> Iterator[LoaderName]:
    """Yield names, with the condition of those rounds of a loop around a node that train.

    Args:
        below: where the node is a call, its function, and what that runs for each batch, with its file.
    """

    def is_idle(bindings: Bindings) -> bool:
        if is_left_out(node, file, bindings, facts.flow):
            return True
        return below is not None and leaves_out(cst.ensure_type(node, cst.Call), file, *below, facts.flow, bindings)

    is_conditional = is_under_condition(node, file) or (below is not None and is_under_condition(*below[1:]))
    for name in in_rounds(names, node, file, is_idle, is_conditional, facts.flow):
        yield _known(name)
