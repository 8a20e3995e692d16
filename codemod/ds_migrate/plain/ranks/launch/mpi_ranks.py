"""Ranks that a program takes from MPI, which knows nothing of those that deepspeed and torchrun start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.source import SourceFile

_WORLD = "mpi4py.MPI.COMM_WORLD"


def ranks_of_mpi(files: Iterable[SourceFile], flow: Flow) -> Iterator[Note]:
    """Yield a note at the first place where a program asks MPI for its ranks."""
    places = ((file, node) for file in files for node in file.attributes_by_name.get("COMM_WORLD", ()))
    found = next(((file, node) for file, node in places if flow.is_named(node, file, _WORLD)), None)
    if found is not None:
        message = (
            "to MPI, each process that deepspeed or torchrun starts is rank 0 of one, also in its guards and seeds"
        )
        advice = "take the rank and the number of ranks from torch.distributed, and leave gradients to the engine"
        yield Note(Code.PLAIN_DISTRIBUTED, *found, message, advice)
