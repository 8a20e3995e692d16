"""Datasets and samplers that give each rank a share themselves, by its number."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.syntax.nodes import argument, last_name, walk
from ds_migrate.syntax.source import SourceFile

_NUMBERS = frozenset(
    {"rank", "global_rank", "world_size", "num_replicas", "shard", "shard_id", "num_shards", "get_rank",
     "get_world_size", "Get_rank", "Get_size"}
)  # fmt: skip
_TAKE = frozenset({"range", "arange", "islice", "split_dataset_by_node"})
_DEPTH = 3


def divides_itself(maker: cst.Call, file: SourceFile, flow: Flow) -> bool:
    """Return whether what a loader reads is selected by the rank, as by ``data[rank::world_size]`` or ``files[rank]``.

    Datasets may do so in their class. Samplers that keep the number of ranks are known when they run.
    """
    given = [argument(maker, 0, "dataset"), argument(maker, None, "sampler"), argument(maker, None, "batch_sampler")]
    return any(_takes_share(arg.value, file, flow, _DEPTH) for arg in given if arg is not None)


def _takes_share(node: cst.BaseExpression, file: SourceFile, flow: Flow, depth: int) -> bool:
    if _selects(node) or _names(node):
        return True
    if depth == 0:
        return False
    for value in of_kind(flow.values(node, file), Kind.INSTANCE):
        known = flow.node_of(value.key)
        if known is not None and any(_selects(f) for f in known[0].nodes(cst.FunctionDef, below=known[1])):
            return True
    return any(_takes_share(part, file, flow, depth - 1) for part in _parts(node, file, flow))


def _parts(node: cst.BaseExpression, file: SourceFile, flow: Flow) -> Iterator[cst.BaseExpression]:
    """Yield what a name is assigned, and the arguments of a call."""
    if isinstance(node, cst.Name):
        yield from file.values_of({node.value}, flow.scopes(file).owner(node.value, node))
    elif isinstance(node, cst.Call):
        yield from (arg.value for arg in node.args)


def _selects(node: cst.CSTNode) -> bool:
    """Return whether the number of a rank, or of all, selects items: in a slice, a range, or after a division."""
    for part in walk(node):
        if isinstance(part, cst.Slice):
            chosen: list[cst.CSTNode] = [each for each in (part.lower, part.upper, part.step) if each is not None]
        elif isinstance(part, cst.Call) and last_name(part.func) in _TAKE:
            chosen = [arg.value for arg in part.args]
        elif isinstance(part, cst.BinaryOperation) and isinstance(part.operator, cst.Modulo):
            chosen = [part.right]
        else:
            continue
        if any(_is_number(each) for one in chosen for each in walk(one)):
            return True
    return False


def _names(node: cst.CSTNode) -> bool:
    """Return whether the number of a rank names what is read: in an index, or in a text such as a path."""
    return any(
        _is_number(each)
        for part in walk(node)
        if isinstance(part, (cst.Index, cst.FormattedStringExpression))
        for each in walk(part)
    )


def _is_number(node: cst.CSTNode) -> bool:
    name = node.value if isinstance(node, cst.Name) else node.attr.value if isinstance(node, cst.Attribute) else ""
    return name in _NUMBERS
