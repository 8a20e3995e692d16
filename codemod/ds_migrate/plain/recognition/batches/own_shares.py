"""Datasets and samplers that give each rank a share themselves, by its number, or that nothing else can divide."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import NOTHING, Kind, Value, of_kind
from ds_migrate.syntax.nodes import argument, dotted, last_name, targets, walk
from ds_migrate.syntax.source import SourceFile

_NUMBERS = frozenset(
    {"rank", "global_rank", "world_size", "num_replicas", "shard", "shard_id", "num_shards", "get_rank",
     "get_world_size", "Get_rank", "Get_size"}
)  # fmt: skip
_RANKS = frozenset({"rank", "global_rank", "shard", "shard_id", "get_rank", "Get_rank"})
_TAKE = frozenset({"range", "arange", "islice", "split_dataset_by_node"})
_OF_SAMPLERS = frozenset({"__iter__", "_get_iterator", "_index_sampler", "sampler", "batch_sampler"})
_DEPTH = 3


def divides_itself(maker: cst.Call, file: SourceFile, flow: Flow) -> bool:
    """Return whether what a loader reads is selected by the rank, as by ``data[rank::world_size]`` or ``files[rank]``.

    Datasets may do so in their class. Samplers that keep the number of ranks are known when they run.
    """
    given = [argument(maker, 0, "dataset"), argument(maker, None, "sampler"), argument(maker, None, "batch_sampler")]
    return any(_takes_share(arg.value, file, flow, _DEPTH) for arg in given if arg is not None)


def streams(maker: cst.Call, file: SourceFile, flow: Flow) -> list[Value]:
    """Return the datasets of a loader where all are of classes of the program that stream their samples."""
    dataset = argument(maker, 0, "dataset")
    made = of_kind(flow.values(dataset.value, file), Kind.INSTANCE) if dataset is not None else NOTHING
    return list(made) if all(_is_stream(value, flow) for value in made) else []


def is_whole_stream(maker: cst.Call, file: SourceFile, flow: Flow) -> bool:
    """Return whether a loader's dataset, of a class of the program, streams its samples and counts no ranks."""
    found = streams(maker, file, flow)
    dataset = argument(maker, 0, "dataset")
    is_counted = dataset is not None and _counts_ranks(dataset)
    return bool(found) and not is_counted and not any(_counts_ranks(flow.node(value)) for value in found)


def _is_stream(value: Value, flow: Flow) -> bool:
    bases = flow.classes.external_bases(value.key)
    return any(name.startswith("torch.") and name.endswith(".IterableDataset") for name in bases)


def _counts_ranks(node: cst.CSTNode) -> bool:
    return any(_is_number(part) for part in walk(node))


def draws_itself(maker: cst.Call, file: SourceFile, flow: Flow) -> bool:
    """Return whether the class of a loader makes batches of its dataset in an ``__iter__()`` without a sampler.

    It may hand on what the sampler of a ``DataLoader`` gives, as by ``super().__iter__()``: then a share is divided.
    """
    for value in of_kind(flow.values(maker.func, file), Kind.CLASS):
        methods = [flow.classes.method(value.key, name) for name in ("__iter__", "__next__")]
        parts = [part for method in methods if method is not None for part in walk(flow.node(method))]
        used = {part.attr.value for part in parts if isinstance(part, cst.Attribute)}
        taken = {part.attr.value for part in walk(flow.node(value)) if isinstance(part, cst.Attribute)}
        if "dataset" in used and not taken & _OF_SAMPLERS:
            return True
    return False


def _takes_share(node: cst.BaseExpression, file: SourceFile, flow: Flow, depth: int) -> bool:
    if _selects(node) or _names(node):
        return True
    if depth == 0:
        return False
    if any(_divides(value, flow, set()) for value in of_kind(flow.values(node, file), Kind.INSTANCE)):
        return True
    return any(_takes_share(part, file, flow, depth - 1) for part in _parts(node, file, flow))


def _divides(value: Value, flow: Flow, seen: set[int]) -> bool:
    """Return whether the class of an object selects items by the rank, or that of an object that it reads from."""
    known = flow.node_of(value.key)
    if known is None or value.key in seen:
        return False
    seen.add(value.key)
    file, node = known
    if any(_selects(function) for function in file.nodes(cst.FunctionDef, below=node)):
        return True
    names = {name for line in file.nodes(cst.Assign, below=node) for name in map(_own_attribute, targets(line))} - {""}
    held = (one for name in names for one in flow.held(flow.classes.attribute(value.key, name)))
    return any(_divides(one, flow, seen) for one in held if one.kind is Kind.INSTANCE)


def _own_attribute(target: cst.BaseExpression) -> str:
    """Return the attribute of ``self`` that is set; "" for anything else."""
    owner, _, name = (dotted(target) or "").rpartition(".")
    return name if owner == "self" else ""


def _parts(node: cst.BaseExpression, file: SourceFile, flow: Flow) -> Iterator[cst.BaseExpression]:
    """Yield what a name is assigned, and the arguments of a call."""
    if isinstance(node, cst.Name):
        yield from file.values_of({node.value}, flow.scopes(file).owner(node.value, node))
    elif isinstance(node, cst.Call):
        yield from (arg.value for arg in node.args)


def _selects(node: cst.CSTNode) -> bool:
    """Return whether the number of a rank, or of all, selects items: in a slice, a range, or after a division."""
    names = _NUMBERS | _made_of_rank(node)
    for part in walk(node):
        if isinstance(part, cst.Slice):
            chosen: list[cst.CSTNode] = [each for each in (part.lower, part.upper, part.step) if each is not None]
        elif isinstance(part, cst.Call) and last_name(part.func) in _TAKE:
            chosen = [arg.value for arg in part.args]
        elif isinstance(part, cst.BinaryOperation) and isinstance(part.operator, cst.Modulo):
            chosen = [part.right]
        else:
            continue
        if any(_is_number(each, names) for one in chosen for each in walk(one)):
            return True
    return False


def _made_of_rank(node: cst.CSTNode) -> set[str]:
    """Return the local names that some code gives numbers made of the rank: ``start = get_rank() * count``."""
    lines = [part for part in walk(node) if isinstance(part, cst.Assign)]
    return {
        target.value
        for line in lines
        if any(_is_number(part, _RANKS) for part in walk(line.value))
        for target in targets(line)
        if isinstance(target, cst.Name)
    }


def _names(node: cst.CSTNode) -> bool:
    """Return whether the number of a rank names what is read: in an index, or in a text such as a path."""
    return any(
        _is_number(each)
        for part in walk(node)
        if isinstance(part, (cst.Index, cst.FormattedStringExpression))
        for each in walk(part)
    )


def _is_number(node: cst.CSTNode, numbers: Collection[str] = _NUMBERS) -> bool:
    name = node.value if isinstance(node, cst.Name) else node.attr.value if isinstance(node, cst.Attribute) else ""
    return name in numbers
