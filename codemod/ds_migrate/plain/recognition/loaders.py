"""The data loaders of training loops: the size of their batches, and whether each rank gets a share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from ds_migrate.plain.dataflow.dead_branches import leaves_out
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, Value, Values, of_kind
from ds_migrate.plain.recognition.drawn_batches import drawn_batches
from ds_migrate.plain.recognition.facts import LoopFacts, Step
from ds_migrate.syntax.nodes import argument, dotted, parameters, set_values, walk
from ds_migrate.syntax.source import SourceFile


def training_loaders(steps: Sequence[Step], facts: LoopFacts) -> list[tuple[SourceFile, cst.Call]]:
    """Return the calls that make the loaders whose batches the steps are made of."""
    found: dict[int, tuple[SourceFile, cst.Call]] = {}
    for step in steps:
        for file, node in sources_of(step.file, step.node, facts, depth=3):
            for value in facts.flow.in_order(loaders_of(node, file, facts.flow)):
                maker = facts.flow.node(value)
                assert isinstance(maker, cst.Call)
                found[id(maker)] = facts.flow.file(value), maker
        idle, busy = _given(step.file, step.node, facts, depth=3)
        for value in idle - busy:
            found.pop(value.key, None)
    return list(found.values())


def _given(file: SourceFile, node: cst.CSTNode, facts: LoopFacts, depth: int) -> tuple[Values, Values]:
    """Return the loaders that calls of the functions around a node are given, without it and with it running."""
    idle: Values = frozenset()
    busy: Values = frozenset()
    function = file.function(node)
    for caller, call in facts.callers.of(function) if function is not None and depth else ():
        assert function is not None
        loaders = frozenset(v for arg in call.args for v in loaders_of(arg.value, caller, facts.flow))
        if leaves_out(call, caller, function, node, file, facts.flow):
            idle |= loaders
            continue
        deeper, others = _given(caller, call, facts, depth - 1)
        idle, busy = idle | deeper, busy | loaders | others
    return idle, busy


def sources_of(
    file: SourceFile, node: cst.CSTNode, facts: LoopFacts, depth: int
) -> Iterator[tuple[SourceFile, cst.BaseExpression]]:
    """Yield what the loops around a node run over, those around the calls of its function too."""
    function = file.function(node)
    for outer in file.ancestors(node):
        if isinstance(outer, cst.For):
            yield file, outer.iter
        elif isinstance(outer, cst.BaseComp):
            inner: cst.CompFor | None = outer.for_in
            while inner is not None:
                yield file, inner.iter
                inner = inner.inner_for_in
        if outer is function:
            break
    for drawn in drawn_batches(file, node, facts):
        yield file, drawn
    if function is not None and depth:
        for caller, call in facts.callers.of(function):
            if not leaves_out(call, caller, function, node, file, facts.flow):
                yield from sources_of(caller, call, facts, depth - 1)


def items_ignore_index(maker: cst.Call, file: SourceFile, flow: Flow) -> bool:
    """Return whether a loader's dataset, a class of the program, draws its items whatever index it is given."""
    dataset = argument(maker, 0, "dataset")
    for value in of_kind(flow.values(dataset.value, file), Kind.INSTANCE) if dataset is not None else ():
        method = flow.classes.method(value.key, "__getitem__")
        function = flow.node(method) if method is not None else None
        if method is None or flow.classes.is_abstract(method):
            continue
        if not isinstance(function, cst.FunctionDef) or len(parameters(function)) != 2:
            continue
        index, owner = parameters(function)[1].name.value, flow.file(method)
        if all(name.value != index for name in owner.nodes(cst.Name, below=function.body)):
            return True
    return False


def loaders_of(node: cst.BaseExpression, file: SourceFile, flow: Flow, depth: int = 4) -> Values:
    """Return the loaders that an expression iterates over, through enumerate(), tqdm(), iter() and the like."""
    values = flow.values(node, file)
    held = of_kind(values, Kind.LOADER)
    if held or depth == 0:
        return held
    wrapped = frozenset(
        v for instance in of_kind(values, Kind.INSTANCE) for inner, within in _iterated_by(instance, flow)
        for v in loaders_of(inner, within, flow, depth - 1)
    )  # fmt: skip
    if wrapped:
        return wrapped
    if isinstance(node, cst.Call):
        return frozenset(v for arg in node.args for v in loaders_of(arg.value, file, flow, depth - 1))
    if isinstance(node, (cst.Name, cst.Attribute)):
        name = dotted(node)
        lines = flow.scopes(file).nodes(node, cst.Assign, cst.AnnAssign)
        assigned = [
            value for n in lines for target, value in set_values(n) if value is not None and dotted(target) == name
        ]
        return frozenset(v for value in assigned for v in loaders_of(value, file, flow, depth - 1))
    return held


def _iterated_by(instance: Value, flow: Flow) -> Iterator[tuple[cst.BaseExpression, SourceFile]]:
    """Yield what an object of a class of the program runs over, where a loop runs over the object."""
    for name in ("__iter__", "__next__"):
        method = flow.classes.method(instance.key, name)
        known = flow.node_of(method.key) if method is not None else None
        if known is None:
            continue
        file, function = known
        yield from ((loop.iter, file) for loop in file.nodes(cst.For, below=function))
        yield from (
            (call.args[0].value, file) for call in file.nodes(cst.Call, below=function)
            if dotted(call.func) in ("iter", "next") and call.args
        )  # fmt: skip


def can_be_sharded(maker: cst.Call, file: SourceFile, flow: Flow) -> bool:
    """Return whether a loader gives all data to each rank, and can give each a share."""
    for name in ("sampler", "batch_sampler"):
        given = argument(maker, None, name)
        if given is not None and dotted(given.value) != "None" and _is_distributed(given.value, file, flow):
            return _may_be_none(given.value, file, flow)
    return True


def _may_be_none(node: cst.BaseExpression, file: SourceFile, flow: Flow) -> bool:
    """Return whether a sampler is None, or gives all data, on another path, where shard() divides the data."""
    if isinstance(node, cst.Name):
        assigned = file.values_of({node.value}, flow.scopes(file).owner(node.value, node))
    else:
        assigned = [node]
    paths = [part for value in assigned for part in _paths(value)]
    return any(dotted(path) == "None" or not _is_distributed(path, file, flow) for path in paths)


def _paths(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    return [node.body, node.orelse] if isinstance(node, cst.IfExp) else [node]


def _is_distributed(node: cst.BaseExpression, file: SourceFile, flow: Flow) -> bool:
    values = flow.values(node, file)
    makers = [flow.node(v) for v in values if v.key and isinstance(flow.node(v), cst.Call)]
    names = [
        dotted(n) or "" for maker in (*makers, node) for n in walk(maker) if isinstance(n, (cst.Name, cst.Attribute))
    ]
    return any("Distributed" in name or "num_replicas" in name for name in names)
