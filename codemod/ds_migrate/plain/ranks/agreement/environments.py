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
from ds_migrate.syntax.nodes import dotted
from ds_migrate.syntax.source import SourceFile

_LIBRARIES = ("gym", "gymnasium")
_MAKERS = tuple(f"{library}.{name}" for library in _LIBRARIES for name in ("make", "make_vec", "vector.make"))
_OTHERS = frozenset({"random", "np.random", "numpy.random", "torch", "torch.random"})  # that seed() means too
_ADVICE = "give reset() a seed that is the same on all ranks, or let rank 0 decide where episodes and training end"


def unseeded_environments(files: list[SourceFile], flow: Flow) -> Iterator[Note]:
    """Yield a note for each environment, and each action that one draws, if the program gives none of them a seed."""
    calls = [(file, call) for file in files for call in file.nodes(cst.Call)]
    made = [(file, call) for file, call in calls if flow.is_call_of(call, file, _MAKERS)]
    drawn = [(file, call) for file, call in calls if _is_of_actions(call, "sample")] if made else []
    if not any(_seeds_environment(call) for _, call in calls):
        for file, call in made:
            message = "each rank acts in a separate environment: its data and the lengths of its episodes differ"
            yield Note(Code.PLAIN_AGREEMENT, file, call, message, _ADVICE)
    elif not any(_is_of_actions(call, "seed") for _, call in calls):
        for file, call in drawn:
            message = "each rank draws other actions here: its data and the lengths of its episodes differ"
            yield Note(Code.PLAIN_AGREEMENT, file, call, message, "give the space of actions a seed")


def _seeds_environment(call: cst.Call) -> bool:
    if not isinstance(call.func, cst.Attribute):
        return False
    name = call.func.attr.value
    if name == "reset":
        return any(arg.keyword is not None and arg.keyword.value == "seed" for arg in call.args)
    return name == "seed" and bool(call.args) and dotted(call.func.value) not in _OTHERS


def _is_of_actions(call: cst.Call, name: str) -> bool:
    """Return whether a call is of a method of a space of actions."""
    owner = call.func.value if isinstance(call.func, cst.Attribute) and call.func.attr.value == name else None
    return isinstance(owner, cst.Attribute) and owner.attr.value.endswith("action_space")
