"""Checkpoints by name, as Determined's client gave them; there is no cluster to ask for anything else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from trial_runtime._cluster_info import get_cluster_info
from trial_runtime.errors import InvalidCheckpointException


class Checkpoint:
    """A checkpoint of a run.

    Attributes:
        uuid: its name.
    """

    def __init__(self, path: Path) -> None:
        self.uuid = path.name
        self._path = path

    @property
    def metadata(self) -> dict[str, Any]:
        """Return its manifest: progress, versions, and sizes and hashes of its files; also ``steps_completed``, the
        batches trained. What Determined wrote into one of its own.

        Raises:
            InvalidCheckpointException: the file is damaged.
        """
        for name in ("manifest.json", "metadata.json"):
            if (self._path / name).is_file():
                facts = _read_fields(self._path / name)
                progress = facts.get("progress")
                if isinstance(progress, dict) and "batches" in progress:
                    facts["steps_completed"] = progress["batches"]
                return facts
        return {}

    def download(self, path: str | Path | None = None) -> str:
        """Return the folder with its files.

        Args:
            path: a folder to copy them to; by default they stay where they are.

        Raises:
            FileExistsError: when ``path`` is there already.
        """
        if path is None:
            return str(self._path)
        return str(shutil.copytree(self._path, path))


def _read_fields(file: Path) -> dict[str, Any]:
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidCheckpointException(f"Checkpoint {file.parent} is damaged: {file.name}: {error}.") from error
    if not isinstance(facts, dict):
        raise InvalidCheckpointException(f"Checkpoint {file.parent} is damaged: {file.name} holds no fields.")
    return facts


def get_checkpoint(uuid: str) -> Checkpoint:
    """Return the checkpoint of this name in the run's checkpoint directory, or at this path; ``"latest"`` is the
    newest.

    The directory is that of the run under ``ds-train``, else ``checkpoints`` in the working directory.

    Raises:
        CheckpointNotFound: when there is none; the message lists those that are there.
    """
    from trial_runtime import core
    from trial_runtime.pytorch._checkpoints.store import CheckpointStore

    info = get_cluster_info()
    directory = Path("checkpoints") if info is None else Path(info.run.checkpoint_directory)
    return Checkpoint(CheckpointStore(directory.absolute(), core.DummyDistributedContext()).find(uuid).absolute())
