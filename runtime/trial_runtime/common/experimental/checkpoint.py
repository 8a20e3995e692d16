"""Checkpoints of Determined's client, by their inner path."""

from trial_runtime.experimental.client import (
    Checkpoint,
    CheckpointOrderBy,
    CheckpointSortBy,
    CheckpointState,
    DownloadMode,
)

__all__ = ["Checkpoint", "CheckpointOrderBy", "CheckpointSortBy", "CheckpointState", "DownloadMode"]
