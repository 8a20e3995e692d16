"""Loaders of one batch: of the samples of a task, which belong together, and of all samples of a data set."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.scopes import names_in
from ds_migrate.plain.dataflow.values import NOTHING, Kind, of_kind
from ds_migrate.plain.recognition.batches.drawn_batches import Draw
from ds_migrate.syntax.nodes import argument, code, dotted, iterator_argument, targets, walk


def is_of_one_round(draw: Draw, flow: Flow) -> bool:
    """Return whether ``next(iter(loader))`` draws the only batch of a loader that is made of what its round made.

    A loader that is made anew in each round of the same data may give further batches, which ranks can share.
    """
    call, file = draw.iterator, draw.file
    loader = iterator_argument(call, "iter") if isinstance(call, cst.Call) else None
    if loader is None:
        return False
    function = file.function(call)
    loop = file.around(call, cst.For, cst.While)
    if loop is None or file.function(loop) is not function:
        return False
    makers = [loader]
    if isinstance(loader, cst.Name):
        assigned = file.values_of({loader.value}, flow.scopes(file).owner(loader.value, loader))
        makers = [value for value in assigned if any(outer is loop for outer in file.ancestors(value))]
    made = {
        name for line in file.nodes(cst.Assign, below=loop) for target in targets(line) for name in names_in(target)
    }
    return any(
        isinstance(part, cst.Name) and part.value in made
        for maker in makers if isinstance(maker, cst.Call)
        for arg in maker.args
        for part in walk(arg.value)
    )  # fmt: skip


def is_of_all_data(draw: Draw, flow: Flow) -> bool:
    """Return whether ``next(iter(loader))`` draws all samples of a data set: targets beside them may be of all, too."""
    call = draw.iterator
    loader = iterator_argument(call, "iter") if isinstance(call, cst.Call) else None
    made = of_kind(flow.values(loader, draw.file), Kind.LOADER) if loader is not None else NOTHING
    return bool(made) and all(_has_one_batch(flow.node(value)) for value in made)


def _has_one_batch(maker: cst.CSTNode) -> bool:
    """Return whether the batches of a loader are as large as its data set: ``batch_size=len(data)``."""
    if not isinstance(maker, cst.Call):
        return False
    data, size = argument(maker, 0, "dataset"), argument(maker, 1, "batch_size")
    count = size.value if size is not None else None
    if data is None or not isinstance(count, cst.Call) or dotted(count.func) != "len" or len(count.args) != 1:
        return False
    return code(count.args[0].value) == code(data.value)
