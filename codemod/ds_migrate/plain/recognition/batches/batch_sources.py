"""The iterables of the loops around a node, and of the ``next()`` calls that draw its batches."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.branches.dead_branches import leaves_out
from ds_migrate.plain.recognition.batches.drawn_batches import drawn_batches
from ds_migrate.plain.recognition.batches.loaders import given_loaders, loaders_of
from ds_migrate.plain.recognition.batches.single_draws import is_of_all_data, is_of_one_round
from ds_migrate.plain.recognition.facts import LoopFacts
from ds_migrate.syntax.source import SourceFile


def sources_of(
    file: SourceFile, node: cst.CSTNode, facts: LoopFacts, depth: int, is_fed: bool = False
) -> Iterator[tuple[SourceFile, cst.BaseExpression]]:
    """Yield what the loops around a node run over, those around the calls of its function too.

    Args:
        is_fed: whether a loop over a loader in a function that the node leads to makes the batches: those that
            ``next()`` draws here are its data.
    """
    function, loops = file.function(node), list[cst.For]()
    for outer in file.ancestors(node):
        if isinstance(outer, cst.For):
            loops.append(outer)
            yield file, outer.iter
        elif isinstance(outer, cst.BaseComp):
            inner: cst.CompFor | None = outer.for_in
            while inner is not None:
                yield file, inner.iter
                inner = inner.inner_for_in
        if outer is function:
            break
    for draw in drawn_batches(file, node, facts) if not is_fed else ():
        if is_of_one_round(draw, facts.flow) or is_of_all_data(draw, facts.flow):
            continue
        is_held = draw.holder is not None and len(given_loaders(draw.holder, file, facts.flow, depth=4)) == 1
        yield (file, draw.holder) if draw.holder is not None and is_held else (draw.file, draw.iterator)
    if function is not None and depth:
        is_fed = is_fed or any(loaders_of(loop.iter, file, facts.flow) for loop in loops)
        for caller, call in facts.flow.callers.of(function):
            if not leaves_out(call, caller, function, node, file, facts.flow):
                yield from sources_of(caller, call, facts, depth - 1, is_fed)
