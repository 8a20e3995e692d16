"""Checkpoints on disk: written beside, committed by a rename, verified before they are read.

::

    checkpoints/
      latest                     name of the newest checkpoint, one line
      00000010-5f0c1a2b/         batches trained, and a random suffix
        manifest.json            written last: sizes and hashes of all other files, progress, versions, world size
        rank_0.pt ...            each rank's generators, data position, callbacks
        load_data.json           how to make the trial again
        state_dict.pth           PyTorchTrial: models, optimizers, schedulers
        model0/ ...              DeepSpeedTrial: each engine's files

A checkpoint is there when it has its final name; a crash leaves a ``.tmp-`` folder at most.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from trial_runtime import core
from trial_runtime._cluster_info import LATEST_FILE
from trial_runtime.errors import InvalidCheckpointException

MANIFEST = "manifest.json"
_T = TypeVar("_T")


class CheckpointStore:
    """A folder of checkpoints that all ranks see. Every method is collective.

    Args:
        directory: the folder; made when the first checkpoint is saved.
        distributed: the ranks.
    """

    def __init__(self, directory: Path, distributed: core.DistributedContext) -> None:
        self.directory = directory
        self.distributed = distributed

    def save(self, name: str, write: Callable[[Path], None], facts: dict[str, Any]) -> Path:
        """Commit a checkpoint: either it is whole under its name afterwards, or there is none of that name.

        Args:
            name: the folder's name.
            write: puts this rank's files into the folder it is given; called on every rank.
            facts: what the manifest says beside the files.

        Raises:
            RuntimeError: on every rank, when a rank could not write.
        """
        temporary, final = self.directory / f".tmp-{name}", self.directory / name
        self._together("begin", lambda: self._begin(temporary))
        self._together("write", lambda: write(temporary), everywhere=True)
        names = self.distributed.broadcast(_files(temporary) if self.distributed.rank == 0 else None)
        mine = names[self.distributed.rank :: self.distributed.size]
        described = self._together("sync", lambda: {n: _describe(temporary / n, sync=True) for n in mine}, True)
        files = {name: facts for part in described for name, facts in part.items()}
        self._together("commit", lambda: self._commit(temporary, final, {**facts, "files": files}))
        return final

    def find(self, given: str) -> Path:
        """The checkpoint of this name in the store, or at this path.

        Raises:
            InvalidCheckpointException: when there is none.
        """
        known = self._latest() if given == LATEST_FILE else given
        for path in (self.directory / known, Path(known)):
            if known and path.is_dir():
                return path
        there = ", ".join(_committed(self.directory)) or "none"
        raise InvalidCheckpointException(
            f"There is no checkpoint {given!r}, neither at this path nor in {self.directory} (there: {there})."
        )

    def verify(self, path: Path) -> dict[str, Any]:
        """Check that all files are there and whole; the manifest (empty for one that Determined wrote).

        Raises:
            InvalidCheckpointException: on every rank, naming the files, and the newest sound checkpoint.
        """
        manifest, problems = None, []
        try:
            manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        except FileNotFoundError:
            if (path / "metadata.json").exists() or (path / "trial_state.pkl").exists():
                manifest = {}
            else:
                problems.append(f"{MANIFEST}: missing")
        except (OSError, ValueError) as error:
            problems.append(f"{MANIFEST}: {error}")
        files = sorted((manifest or {}).get("files", {}).items())
        for name, wanted in files[self.distributed.rank :: self.distributed.size]:
            problems.extend(_compare(path / name, name, wanted))
        everyones = sorted({problem for rank in self.distributed.allgather(problems) for problem in rank})
        if everyones:
            sound = self.distributed.broadcast(self._newest_sound(path) if self.distributed.rank == 0 else None)
            advice = f"The newest sound checkpoint there is {sound}." if sound else "No other sound one is beside it."
            raise InvalidCheckpointException(f"Checkpoint {path} is damaged: {'; '.join(everyones)}. {advice}")
        assert manifest is not None
        return dict(manifest)

    def _begin(self, temporary: Path) -> None:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)

    def _commit(self, temporary: Path, final: Path, manifest: dict[str, Any]) -> None:
        _write_synced(temporary / MANIFEST, json.dumps(manifest, indent=1, sort_keys=True))
        for folder in {temporary, *(path.parent for path in temporary.rglob("*"))}:
            _sync_folder(folder)
        temporary.rename(final)
        _sync_folder(self.directory)
        pointer = self.directory / f".tmp-{LATEST_FILE}"
        _write_synced(pointer, final.name + "\n")
        pointer.replace(self.directory / LATEST_FILE)
        _sync_folder(self.directory)

    def _together(self, what: str, act: Callable[[], _T], everywhere: bool = False) -> list[_T]:
        """Act on the chief or on every rank; when one fails, all do, and nothing half-done stays."""
        result, error = None, None
        if everywhere or self.distributed.rank == 0:
            try:
                result = act()
            except Exception as caught:
                error = caught
        outcomes = self.distributed.allgather((None if error is None else repr(error), result))
        failures = [f"rank {rank}: {message}" for rank, (message, _) in enumerate(outcomes) if message is not None]
        if failures:
            raise RuntimeError(
                f"Saving a checkpoint to {self.directory} failed ({what}): {'; '.join(failures)}. "
                "Earlier checkpoints are untouched."
            ) from error
        return [outcome for _, outcome in outcomes]

    def _latest(self) -> str:
        try:
            return (self.directory / LATEST_FILE).read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return ""

    def _newest_sound(self, other_than: Path) -> str | None:
        for name in reversed(_committed(other_than.parent)):
            path = other_than.parent / name
            if path == other_than:
                continue
            manifest = _manifest(path)
            if not any(_compare(path / file, file, wanted) for file, wanted in manifest["files"].items()):
                return name
        return None


def _manifest(path: Path) -> dict[str, Any]:
    manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    assert isinstance(manifest, dict)
    return manifest


def _committed(directory: Path) -> list[str]:
    """Names of the checkpoints in a folder, oldest first."""
    found = [path for path in directory.glob(f"*/{MANIFEST}") if not path.parent.name.startswith(".tmp-")]
    return [path.parent.name for path in sorted(found, key=lambda path: (path.stat().st_mtime_ns, path.parent.name))]


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _describe(path: Path, sync: bool = False) -> dict[str, Any]:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
        if sync:
            os.fsync(file.fileno())
        return {"size": path.stat().st_size, "sha256": digest.hexdigest()}


def _compare(path: Path, name: str, wanted: dict[str, Any]) -> Sequence[str]:
    if not path.is_file():
        return [f"{name}: missing"]
    size = path.stat().st_size
    if size != wanted["size"]:
        return [f"{name}: {size} bytes, should be {wanted['size']}"]
    if _describe(path)["sha256"] != wanted["sha256"]:
        return [f"{name}: its content has changed"]
    return []


def _write_synced(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
