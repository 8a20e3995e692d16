"""Loaders of which each rank can get a share, and datasets whose items do not depend on the index."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.recognition.batches.training_loaders import training_loaders
from ds_migrate.plain.recognition.facts import LoopFacts, Step
from ds_migrate.plain.recognition.lone_scripts import runs_alone
from ds_migrate.syntax.branches import parting
from ds_migrate.syntax.nodes import argument, code, dotted, parameters, walk
from ds_migrate.syntax.source import SourceFile


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
        reads = [name for name in owner.nodes(cst.Name, below=function.body) if name.value == index]
        draws = [call for call in owner.nodes(cst.Call, below=function.body) if _is_draw(call, owner, flow)]
        if all(any(_replaces(draw, read, owner) for draw in draws) for read in reads):
            return True
    return False


def _is_draw(call: cst.Call, file: SourceFile, flow: Flow) -> bool:
    called = of_kind(flow.values(call.func, file), Kind.EXTERNAL)
    return any(value.name.startswith(("random.", "numpy.random.", "torch.rand")) for value in called)


def _replaces(draw: cst.Call, read: cst.Name, file: SourceFile) -> bool:
    """Return whether a condition, which draws nothing, chooses between a drawn item and one at an index."""
    condition = parting(file, draw, read)
    return condition is not None and "random" not in code(condition.test)


def loaders_to_share(steps: Sequence[Step], facts: LoopFacts) -> list[tuple[SourceFile, cst.Call]]:
    """Return the calls that make the loaders of which ranks get shares: a program that starts ranks knows its own."""
    return [
        (file, maker) for file, maker in training_loaders(steps, facts)
        if runs_alone(file, facts.flow) and _can_be_shared(maker, file, facts.flow)
    ]  # fmt: skip


def _can_be_shared(maker: cst.Call, file: SourceFile, flow: Flow) -> bool:
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
    paths = [
        path for value in assigned
        for path in ((value.body, value.orelse) if isinstance(value, cst.IfExp) else (value,))
    ]  # fmt: skip
    if any(dotted(path) == "None" or not _is_distributed(path, file, flow) for path in paths):
        return True
    functions = (v for path in paths if isinstance(path, cst.Call) for v in flow.values(path.func, file))
    for function in of_kind(frozenset(functions), Kind.FUNCTION, Kind.METHOD):  # returns it in one of its branches
        other = flow.file(function)
        returned = other.returned(flow.node(function))
        if any(value is None or dotted(value) == "None" for value in returned):
            return True
        if any(value is not None and not _is_distributed(value, other, flow) for value in returned):
            return True
    return False


def _is_distributed(node: cst.BaseExpression, file: SourceFile, flow: Flow) -> bool:
    values = flow.values(node, file)
    makers = [flow.node(v) for v in values if v.key and isinstance(flow.node(v), cst.Call)]
    names = [
        dotted(n) or "" for maker in (*makers, node) for n in walk(maker) if isinstance(n, (cst.Name, cst.Attribute))
    ]
    return any("Distributed" in name or "num_replicas" in name for name in names)
