"""Loops that end by a count of samples: each rank counts those of its share alone."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.rank_values import RankValues
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.scopes import names_in
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.recognition.batches.loaders import loaders_of
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import dotted, mentions, targets, walk
from ds_migrate.syntax.source import SourceFile


def counted_ends(files: list[SourceFile], values: RankValues, flow: Flow) -> Iterator[Note]:
    """Yield a note for each loop over a share that ends once its batches have had some number of samples."""
    for file in files:
        for loop in file.nodes(cst.For):
            if not values.are_shares(loaders_of(loop.iter, file, flow)):
                continue
            counts = _sample_counts(loop, file)
            end = next((node for node in _ends(loop, file) if _compares(node.test, counts)), None)
            if end is not None:
                message = "a rank counts the samples of its share alone to end this: n ranks go through n times as many"
                advice = "compare the samples of all ranks: torch.distributed.get_world_size() times as many"
                yield Note(Code.PLAIN_SAMPLER, file, end, message, advice)


def _sample_counts(loop: cst.For, file: SourceFile) -> set[str]:
    """Return the names to which a loop adds the sizes of its batches."""
    batch, sizes = set(names_in(loop.target)), set[str]()
    for line in file.nodes(cst.Assign, below=loop.body):
        names = {name for target in targets(line) for name in names_in(target)}
        if _is_size(line.value, batch, sizes):
            sizes |= names
        elif mentions(line.value, batch):
            batch |= names
    sums: list[cst.AugAssign] = file.nodes(cst.AugAssign, below=loop.body)
    added = (line for line in sums if isinstance(line.operator, cst.AddAssign) and _is_size(line.value, batch, sizes))
    return {name for line in added if (name := dotted(line.target)) is not None}


def _is_size(node: cst.BaseExpression, batch: set[str], sizes: set[str]) -> bool:
    """Return whether an expression is the size of a batch: ``len(x)``, ``x.size(0)``, ``x.shape[0]`` or its name."""
    if isinstance(node, cst.Name):
        return node.value in sizes
    if isinstance(node, cst.Call) and dotted(node.func) == "len":
        return mentions(node, batch)
    part = node.func if isinstance(node, cst.Call) else node.value if isinstance(node, cst.Subscript) else None
    return isinstance(part, cst.Attribute) and part.attr.value in ("size", "shape") and mentions(part.value, batch)


def _ends(loop: cst.For, file: SourceFile) -> Iterator[cst.If | cst.While]:
    """Yield the statements of a loop's function that end it, or a loop around it, by a condition."""
    around = {id(outer) for outer in file.ancestors(loop)}
    scope = file.function(loop)
    for node in file.nodes(cst.If, cst.While, below=scope or file.module):
        if isinstance(node, cst.While) and id(node) in around:
            yield node
        leaves = isinstance(node, cst.If) and file.function(node) is scope
        if leaves and any(isinstance(part, (cst.Break, cst.Return)) for part in walk(node.body)):
            yield node


def _compares(test: cst.BaseExpression, counts: set[str]) -> bool:
    compared = (part for part in walk(test) if isinstance(part, cst.Comparison))
    return any(dotted(part) in counts for one in compared for part in walk(one))
