"""Batches that ``next()`` draws: those that training is made of, and those that are only shown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.scopes import names_in
from ds_migrate.plain.dataflow.values import NOTHING, Kind, of_kind
from ds_migrate.plain.recognition.batches.evaluated_batches import only_evaluates
from ds_migrate.plain.recognition.facts import LoopFacts
from ds_migrate.syntax.nodes import called_name, dotted, iterator_argument, last_name, targets, walk
from ds_migrate.syntax.source import SourceFile

_SHOWS = frozenset({"print", "info", "debug", "write", "log", "add_scalar", "add_image", "add_graph"})
_SHAPES = frozenset({"shape", "size", "dtype", "device"})


@dataclass(frozen=True, eq=False)
class Draw:
    """An iterator that a call draws batches from, with its file.

    Attributes:
        holder: the object that the call asks for a batch, in the file of the call; None where it asks none.
    """

    file: SourceFile
    iterator: cst.BaseExpression
    holder: cst.BaseExpression | None = None


def drawn_batches(file: SourceFile, node: cst.CSTNode, facts: LoopFacts) -> Iterator[Draw]:
    """Yield what ``next()`` draws from, in the function around a step, or a call that leads to it, to train on it."""
    flow = facts.flow
    if not flow.once(_may_draw):
        return
    function = file.function(node)
    draws = flow.once(_draws_in, file, function, facts)
    if not draws:
        return
    used = _names_behind(node, file, facts)
    looped = {name for loop in file.nodes(cst.For, below=function or file.module) for name in names_in(loop.target)}
    for call, found in draws:
        names = _names_of(call, file)
        is_given = any(part is call for part in walk(node))  # to the function that trains
        # next(iter(loader)) beside a loop over another one
        is_anew = isinstance(found[0].iterator, cst.Call) and found[0].file is file
        if is_given or not used or not names or (names & used and not (is_anew and names & looped)):
            yield from found


def _may_draw(flow: Flow) -> bool:
    return any(file.spelled("next") or "__next__" in file.attributes_by_name for file in flow.files.values())


def _draws_in(
    _: Flow, file: SourceFile, function: cst.FunctionDef | None, facts: LoopFacts
) -> list[tuple[cst.Call, list[Draw]]]:
    """Return the calls in a function, or in a module's own lines, that draw batches not only to show them."""
    calls = file.nodes(cst.Call, below=function or file.module)
    here = [call for call in calls if function is not None or file.function(call) is None]
    found_by = [(call, found) for call in here if (found := list(_draws_of(call, file, facts)))]
    return [one for one in found_by if not _is_shown(one[0], file) and not only_evaluates(one[0], file, facts)]


def _draws_of(call: cst.Call, file: SourceFile, facts: LoopFacts, depth: int = 3) -> Iterator[Draw]:
    """Yield what a call draws from: ``next(it)``, and in functions of the program that do so and train nothing."""
    iterator = iterator_argument(call, "next")
    if iterator is not None:
        yield Draw(file, iterator)
        return
    flow = facts.flow
    called = of_kind(flow.values(call.func, file), Kind.FUNCTION, Kind.METHOD) if depth else NOTHING
    holder = call.func.value if isinstance(call.func, cst.Attribute) else None
    for value in flow.in_order(called):
        if any(facts.flow.callers.reaches(value.key, step.function) for step in facts.operations.steps):
            continue
        within, function = flow.file(value), flow.node(value)
        assert isinstance(function, cst.FunctionDef)
        is_of_holder = value.kind is Kind.METHOD and dotted(holder) != "self"
        for inner in within.nodes(cst.Call, below=function):
            for draw in _draws_of(inner, within, facts, depth - 1):
                given = flow.given(call, function, dotted(draw.iterator) or "", file) if draw.file is within else None
                if given is not None and not given.star:
                    yield Draw(file, given.value)
                else:
                    yield Draw(draw.file, draw.iterator, holder if is_of_holder else None)


def _is_shown(call: cst.Call, file: SourceFile) -> bool:
    """Return whether a call is in one that only prints or logs."""
    around = [outer for outer in file.ancestors(call) if isinstance(outer, cst.Call)]
    return any(last_name(outer.func) in _SHOWS for outer in around)


def _names_of(call: cst.Call, file: SourceFile) -> set[str]:
    """Return the names that are given a batch; none where it is given to something else."""
    statements = (cst.BaseSmallStatement, cst.BaseCompoundStatement)
    line = next((outer for outer in file.ancestors(call) if isinstance(outer, statements)), None)
    if not isinstance(line, cst.Assign):
        return set()
    bound = [names_in(target) for target in targets(line)]
    return {name for names in bound for name in names} if all(bound) else set()


def _names_behind(node: cst.CSTNode, file: SourceFile, facts: LoopFacts) -> set[str]:
    """Return the names that the losses of a step are made of, in its function, or the arguments of a call to it."""
    function = file.function(node)
    losses = [b.loss for b in facts.operations.backwards if b.file is file and b.function is function]
    given = [arg.value for arg in node.args] if isinstance(node, cst.Call) else []
    used = {name for part in (*losses, *given) for name in _read(part)}
    links = list(_links(file, function or file.module, facts)) if used else []
    while True:
        more = {name for bound, read in links if bound & used for name in read} - used
        if not more:
            return used
        used |= more


def _links(file: SourceFile, below: cst.CSTNode, facts: LoopFacts) -> Iterator[tuple[set[str], set[str]]]:
    """Yield names, and those that they are made of."""
    for node in file.nodes(cst.Assign, cst.AnnAssign, cst.AugAssign, cst.NamedExpr, below=below):
        bound = targets(node) if not isinstance(node, cst.NamedExpr) else [node.target]
        if node.value is not None and not _makes_loader(node.value, file, facts):
            yield {name for target in bound for name in _read(target)}, _read(node.value)
    for node in file.nodes(cst.For, cst.CompFor, below=below):
        if not _makes_loader(node.iter, file, facts):
            yield _read(node.target), _read(node.iter)
    for node in file.nodes(cst.WithItem, below=below):
        if node.asname is not None:
            yield _read(node.asname.name), _read(node.item)
    for call in file.nodes(cst.Call, below=below):  # outputs.append(model(x))
        owners = facts.flow.values(call.func.value, file) if isinstance(call.func, cst.Attribute) else NOTHING
        is_put = called_name(call) not in _SHOWS and not of_kind(owners, Kind.MODULE, Kind.EXTERNAL)
        if isinstance(call.func, cst.Attribute) and is_put:
            yield _read(call.func.value), {name for arg in call.args for name in _read(arg.value)}
        yield from _filled(call, file, facts.flow)


def _filled(call: cst.Call, file: SourceFile, flow: Flow) -> Iterator[tuple[set[str], set[str]]]:
    """Yield the arguments that a function of the program changes in place, by ``tensor.copy_()``, with the others."""
    for value in (
        of_kind(flow.values(call.func, file), Kind.FUNCTION) if isinstance(file.parent(call), cst.Expr) else ()
    ):
        function, home = flow.node(value), flow.file(value)
        assert isinstance(function, cst.FunctionDef)
        changes = (inner.func for inner in home.nodes(cst.Call, below=function))
        changed = {
            name for func in changes if isinstance(func, cst.Attribute) and func.attr.value.endswith("_")
            for name in _read(func.value)
        }  # fmt: skip
        given = {name: flow.given(call, function, name, file) for name in changed}
        for arg in filter(None, given.values()):
            yield _read(arg.value), {name for other in call.args if other is not arg for name in _read(other.value)}


def _makes_loader(node: cst.BaseExpression, file: SourceFile, facts: LoopFacts) -> bool:
    """Return whether an expression makes a loader: its arguments are data, of which the loader makes batches."""
    return isinstance(node, cst.Call) and bool(of_kind(facts.flow.values(node, file), Kind.LOADER))


def _read(node: cst.CSTNode) -> set[str]:
    """Return the names in a node whose values matter: ``batch.size()`` is that of each batch."""
    shapes = (n.value for n in walk(node) if isinstance(n, cst.Attribute) and n.attr.value in _SHAPES)
    sizes = {id(n) for shape in shapes for n in walk(shape)}
    return {n.value for n in walk(node) if isinstance(n, cst.Name) and id(n) not in sizes}
