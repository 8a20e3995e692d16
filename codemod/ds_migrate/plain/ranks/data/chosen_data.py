"""Training data that a program chooses by its model's outputs or by losses: on several ranks, each rank has others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.rank_values import RankValues
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.recognition.batches.passed_objects import Passed, passed_on
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import argument
from ds_migrate.syntax.source import SourceFile

_DEEPEST = 4  # calls and names between a loader and what chooses its data


def chosen_data(shares: Sequence[tuple[SourceFile, cst.Call]], flow: Flow, values: RankValues) -> Iterator[Note]:
    """Yield a note for each loader that ranks share, and whose dataset or sampler is made of what differs by rank.

    A sampler draws on rank 0, for a dataset of another rank: indices may be of other samples, or of none.
    """
    for file, maker in shares:
        parts = [argument(maker, place, name) for place, name in ((0, "dataset"), (3, "sampler"), (4, "batch_sampler"))]
        given = [arg for arg in parts if arg is not None] if _is_of_torch(maker, file, flow) else maker.args
        if _is_chosen([(file, arg.value) for arg in given], flow, values):
            message = (
                "this data is chosen by what differs by rank, as outputs and losses do: each rank would have another "
                "selection, and divide it by rank 0's indices"
            )
            advice = "have rank 0's selection on all ranks, by torch.distributed.broadcast_object_list()"
            yield Note(Code.PLAIN_AGREEMENT, file, maker, message, advice)


def _is_of_torch(maker: cst.Call, file: SourceFile, flow: Flow) -> bool:
    return not of_kind(flow.values(maker.func, file), Kind.CLASS, Kind.FUNCTION, Kind.METHOD)


def _is_chosen(given: Sequence[Passed], flow: Flow, values: RankValues) -> bool:
    """Return whether one of these is made of what differs by rank, as an object of the program by its arguments."""
    level, seen = list(given), set[int]()
    for _ in range(_DEEPEST + 1):
        new = {id(node): (file, node) for file, node in level if id(node) not in seen}
        if any(values.differs(node, file) for file, node in new.values()):
            return True
        seen |= new.keys()
        level = [part for file, node in new.values() for part in _parts(node, file, flow)]
    return False


def _parts(node: cst.BaseExpression, file: SourceFile, flow: Flow) -> list[Passed]:
    """Return the arguments of a call, or what a name or attribute is set to or has from other functions."""
    if isinstance(node, cst.Call):
        return [(file, arg.value) for arg in node.args]
    if not isinstance(node, (cst.Name, cst.Attribute)):
        return []
    made = [(file, value) for value in flow.scopes(file).assigned(node)]
    return made + passed_on(node, file, flow) if isinstance(node, cst.Name) else made
