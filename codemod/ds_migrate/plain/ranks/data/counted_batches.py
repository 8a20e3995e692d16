"""Numbers of batches that a program counts itself: the share of a rank may not have so many."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import NOTHING, Kind, Value, Variable, of_kind
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.recognition.batches.loader_rounds import LoaderName
from ds_migrate.plain.recognition.batches.loaders import loaders_of
from ds_migrate.plain.recognition.facts import LoopFacts
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import argument, code, dotted, is_literal, iterator_argument, set_values, walk
from ds_migrate.syntax.source import SourceFile

_BATCH = re.compile(r"batch|\bbs\b", re.IGNORECASE)
Makers = Iterable[tuple[SourceFile, cst.Call]]
_RANGES = frozenset({"range", "trange", "tqdm.trange"})


def counted_batches(makers: Makers, counted: Collection[int], flow: Flow) -> Iterator[Note]:
    """Yield what to check where the size of all data is divided by that of a batch, as for the length of a schedule.

    Args:
        makers: the calls that make the loaders of which each rank has a share.
        counted: the calls of ``len()``, by identity, that count a rank's samples instead.
    """
    nodes = {id(maker) for _, maker in makers}
    given = [(file, argument(maker, 0, "dataset")) for file, maker in makers]
    held = {flow.variable(arg.value, file) for file, arg in given if arg is not None} - {None}
    held |= {whole for part, whole in _splits(flow) if part in held}
    for file, node in flow.nodes(cst.BinaryOperation):
        if not isinstance(node.operator, (cst.Divide, cst.FloorDivide)) or not _BATCH.search(code(node.right)):
            continue
        for call in _lengths(node.left, file, flow):
            data, loaders = call.args[0].value, NOTHING
            if id(call) in counted:
                continue
            if isinstance(data, cst.Attribute) and data.attr.value == "dataset":
                loaders = loaders_of(data.value, file, flow)
            if flow.variable(data, file) in held or any(id(flow.node(loader)) in nodes for loader in loaders):
                yield Note(
                    Code.PLAIN_SAMPLER, file, node,
                    "this counts the batches of all data, and on several ranks each one has a share of them",
                    "use len() of the loader, which is that of the share",
                )  # fmt: skip
                break


def _splits(flow: Flow) -> Iterator[tuple[Variable | None, Variable | None]]:
    """Yield the variable of each part that ``random_split()`` makes of a dataset, with that of the dataset."""
    for file, line in flow.nodes(cst.Assign):
        made = line.value
        if isinstance(made, cst.Call) and (dotted(made.func) or "").endswith("random_split") and made.args:
            whole = flow.variable(made.args[0].value, file)
            yield from ((flow.variable(target, file), whole) for target, _ in set_values(line))


def _lengths(number: cst.BaseExpression, file: SourceFile, flow: Flow, depth: int = 3) -> Iterator[cst.Call]:
    """Yield the calls of ``len()`` that a number is made of."""
    for node in walk(number):
        if isinstance(node, cst.Call) and dotted(node.func) == "len" and len(node.args) == 1:
            yield node
        elif isinstance(node, (cst.Name, cst.Attribute)) and depth:
            for value in flow.scopes(file).assigned(node):
                yield from _lengths(value, file, flow, depth - 1)


def lengths_before_share(maker: cst.Call, file: SourceFile, name: LoaderName, facts: LoopFacts) -> Iterator[Note]:
    """Yield what to check where the length of a loader is asked for before a line divides it.

    Args:
        maker: makes the loader, in ``file``.
        name: that the loader has at the line behind which it is divided.
    """
    made_in, divided_in = file.function(maker), name.file.function(name.statement)
    for other in facts.flow.files.values() if made_in is not divided_in or file is not name.file else ():
        for call in other.nodes(cst.Call):
            function = other.function(call)
            is_length = dotted(call.func) == "len" and len(call.args) == 1 and function is not None
            if not is_length or not facts.flow.callers.reaches(id(function), made_in):
                continue
            is_behind = divided_in is not None and facts.flow.callers.reaches(id(function), divided_in)
            if function is divided_in:
                is_behind = other.position(call) > other.position(name.statement)
            loaders = loaders_of(call.args[0].value, other, facts.flow)
            if not is_behind and any(facts.flow.node(loader) is maker for loader in loaders):
                yield Note(
                    Code.PLAIN_SAMPLER, other, call,
                    "this counts the batches of all data, and on several ranks each one has a share of them",
                    "ask for the length where the loader that trains is divided by shard()",
                )  # fmt: skip


def counted_draws(makers: Makers, flow: Flow) -> Iterator[Note]:
    """Yield what to check where a loop counts to another number than ``len()`` of the loader that it draws from.

    Args:
        makers: the calls that make the loaders of which each rank has a share.
    """
    shared = {id(maker) for _, maker in makers}
    for file, call in flow.nodes(cst.Call):
        drawn = iterator_argument(call, "next")
        if drawn is None or len(call.args) > 1:
            continue
        loaders = loaders_of(drawn, file, flow)
        loop = _loop_around(call, file)
        if (
            loop is not None
            and any(_is_counted(flow.node(loader), flow.file(loader), shared, flow) for loader in loaders)
            and _is_one_pass(drawn, loop, file, flow)
            and not _counts_batches(loop.iter, file, flow)
        ):
            yield Note(
                Code.PLAIN_SAMPLER, file, call,
                "this loop draws a number of batches of which each rank has a share only: on several ranks next() "
                "ends before the loop",
                "count to len() of the loader, or divide the number by torch.distributed.get_world_size()",
            )  # fmt: skip


def _loop_around(call: cst.Call, file: SourceFile) -> cst.For | None:
    """Return the loop over a range that a draw is directly in, where no handler takes its end."""
    for outer in file.ancestors(call):
        if isinstance(outer, (cst.Try, cst.TryStar, cst.While, cst.FunctionDef, cst.Lambda)):
            return None
        if isinstance(outer, cst.For):
            ranges = [n for n in walk(outer.iter) if isinstance(n, cst.Call) and dotted(n.func) in _RANGES]
            return outer if ranges else None
    return None


def _is_one_pass(drawn: cst.BaseExpression, loop: cst.For, file: SourceFile, flow: Flow) -> bool:
    """Return whether an iterator is that of a loader, and is not made anew within the loop."""
    if not isinstance(drawn, cst.Name):
        return False
    made = file.values_of({drawn.value}, file.function(drawn) or file.module)
    loaders = [_passed_over(m) if isinstance(m, cst.Call) else None for m in made]
    is_endless = any(loader is not None and _is_endless(loader, file, flow) for loader in loaders)
    return bool(loaders) and None not in loaders and not is_endless and not file.values_of({drawn.value}, loop)


def _passed_over(call: cst.Call) -> cst.BaseExpression | None:
    """Return what a call passes over: of ``iter(loader)`` and ``enumerate(loader)``."""
    is_numbered = dotted(call.func) == "enumerate" and bool(call.args)
    return call.args[0].value if is_numbered else iterator_argument(call, "iter")


def _is_counted(maker: cst.CSTNode, file: SourceFile, shared: Collection[int], flow: Flow) -> bool:
    """Return whether each rank has a share of a loader, and its samples come to an end."""
    if id(maker) not in shared or not isinstance(maker, cst.Call):
        return False
    given = [argument(maker, 0, "dataset"), argument(maker, None, "sampler"), argument(maker, None, "batch_sampler")]
    return not any(arg is not None and _is_endless(arg.value, file, flow) for arg in given)


def _is_endless(node: cst.BaseExpression, file: SourceFile, flow: Flow) -> bool:
    """Return whether an expression starts over where its loader ends, as the generator of an endless loop does."""
    called = flow.values(node.func, file) if isinstance(node, cst.Call) else NOTHING
    methods = (flow.classes.method(v.key, "__iter__") for v in of_kind(flow.values(node, file), Kind.INSTANCE))
    return any(
        _starts_over(function, flow)
        for function in (*of_kind(called, Kind.FUNCTION, Kind.METHOD), *filter(None, methods))
    )


def _starts_over(function: Value, flow: Flow, depth: int = 2) -> bool:
    """Return whether a function has an endless loop, or calls one of the program's that has."""
    file, node = flow.file(function), flow.node(function)
    called = [call for call in file.nodes(cst.Call, below=node) if depth]
    return any(_has_no_end(loop, file) for loop in file.nodes(cst.While, below=node)) or any(
        _starts_over(callee, flow, depth - 1)
        for call in called
        for callee in of_kind(flow.values(call.func, file), Kind.FUNCTION, Kind.METHOD)
    )


def _has_no_end(loop: cst.While, file: SourceFile) -> bool:
    """Return whether a loop runs forever: nothing leaves it."""
    leaving = file.nodes(cst.Break, cst.Return, below=loop.body)
    return (is_literal(loop.test, "True") or code(loop.test) == "1") and not any(
        isinstance(jump, cst.Return)
        or next(a for a in file.ancestors(jump) if isinstance(a, (cst.For, cst.While))) is loop
        for jump in leaving
    )


def _counts_batches(counted: cst.BaseExpression, file: SourceFile, flow: Flow, depth: int = 3) -> bool:
    """Return whether a number is made of ``len()`` of a loader."""
    for node in walk(counted):
        if isinstance(node, cst.Call) and dotted(node.func) == "len" and node.args:
            if loaders_of(node.args[0].value, file, flow):
                return True
        elif isinstance(node, (cst.Name, cst.Attribute)) and depth and dotted(node) is not None:
            made = file.values_of({dotted(node) or ""}, file.module)
            if any(_counts_batches(value, file, flow, depth - 1) for value in made):
                return True
    return False
