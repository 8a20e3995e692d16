"""Environments of reinforcement learning that begin by themselves: each rank acts in a separate one.

Their episodes have other lengths on each rank. A script that steps an optimizer in each of their steps then does so
more often on one rank, and ranks wait for each other forever.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.source import SourceFile

_MAKERS = tuple(f"{lib}.{name}" for lib in ("gym", "gymnasium") for name in ("make", "make_vec", "vector.make"))


def separate_environments(files: list[SourceFile], flow: Flow) -> Iterator[Note]:
    """Yield a note for each call that makes an environment; what seeds it and its actions is not followed."""
    for file in files:
        for call in file.nodes(cst.Call):
            if flow.is_call_of(call, file, _MAKERS):
                message = (
                    "each rank acts in a separate environment: its data and the lengths of its episodes differ where "
                    "it and its space of actions do not have one seed on all ranks"
                )
                advice = (
                    "give reset() and action_space a seed that is the same on all ranks, or let rank 0 decide where "
                    "episodes and training end"
                )
                yield Note(Code.PLAIN_AGREEMENT, file, call, message, advice)
