"""A verified checkpoint, and what a rank takes from it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from trial_runtime.errors import InvalidCheckpointException
from trial_runtime.pytorch._checkpoints import restricted_load


@dataclasses.dataclass(frozen=True)
class Restored:
    """A verified checkpoint.

    Attributes:
        name: its name in the store.
        path: its folder.
        manifest: its manifest.
        rank_state: what this rank wrote; that of another rank when there were fewer.
        warm: whether only weights are taken.
        is_trusted: whether objects in its files may run code.
    """

    name: str
    path: Path
    manifest: dict[str, Any]
    rank_state: dict[str, Any]
    warm: bool = False
    is_trusted: bool = False

    @property
    def progress(self) -> dict[str, Any]:
        """Return the counts of :class:`Progress`."""
        return dict(self.manifest["progress"])

    def data_position(self, ranks: int, micro_batches: int) -> dict[str, Any]:
        """Return the state to start :class:`TrainingData` from with this many data-parallel ranks."""
        saved = self.rank_state.get("data")
        if saved is None:
            return {"taken": int(self.progress["batches"]) * micro_batches, "passes": []}
        wrote = int(self.manifest.get("data_parallel_size", ranks))
        if wrote == ranks:
            return dict(saved)
        # Another share of the data: what a rank's loader kept for itself is of no use.
        read = int(saved["taken"]) * wrote
        shape = {name: saved.get(name) for name in ("batch_size", "pass_length")}
        return {"taken": read // ranks, "passes": saved["passes"], "read": {"batches": read, **shape}}


def read_rank_state(path: Path, manifest: dict[str, Any], rank: int) -> dict[str, Any]:
    """Return what this rank wrote; that of another rank when there were fewer.

    Raises:
        InvalidCheckpointException: the checkpoint does not hold it.
    """
    file = path / f"rank_{rank % int(manifest.get('world_size', 1))}.pt"
    if not file.is_file():
        raise InvalidCheckpointException(f"Checkpoint {path} is damaged: {file.name}: missing.")
    state = restricted_load.read(file)
    if not isinstance(state, dict):
        raise InvalidCheckpointException(f"Checkpoint {path} is damaged: {file.name} holds a {type(state).__name__}.")
    return state
