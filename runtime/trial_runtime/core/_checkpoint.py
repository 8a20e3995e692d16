"""Checkpoints of a program, by Determined's calls, in the store that trials use."""

from __future__ import annotations

import contextlib
import enum
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trial_runtime.core._distributed import DistributedContext, DummyDistributedContext
from trial_runtime.core._shards import listed, merge_metadata, shares_of

if TYPE_CHECKING:
    from trial_runtime.pytorch._checkpoints.store import CheckpointStore
    from trial_runtime.pytorch._loop.settings import RunSettings

_METADATA = "metadata.json"
_NO_STEPS = (
    "metadata for reported checkpoints, in the current implementation, requires a 'steps_completed' item, which has "
    "not been provided"
)


class DownloadMode(enum.Enum):
    """The way ranks download: those of a node share a copy and call in step, or each rank calls for itself."""

    LocalWorkersShareDownload = "LOCAL_WORKERS_SHARE_DOWNLOAD"
    NoSharedDownload = "NO_SHARED_DOWNLOAD"


class CheckpointContext:
    """Checkpoints of this run: committed whole, with a manifest, verified before they are read.

    A ``storage_id`` is the checkpoint's name in the run's checkpoint directory. Where one is asked for, a path, a URL
    of a storage, and ``"latest"`` are accepted too.

    Args:
        settings: directories of the run.
        distributed: its ranks.
    """

    def __init__(self, settings: RunSettings, distributed: DistributedContext) -> None:
        self._settings = settings
        self._distributed = distributed
        self._stores: dict[bool, CheckpointStore] = {}

    def upload(
        self,
        ckpt_dir: str | os.PathLike[str] | None,
        metadata: dict[str, Any] | None = None,
        *,
        shard: bool = False,
        selector: Callable[[str], bool] | None = None,
    ) -> str:
        """Save a folder as a checkpoint; its name.

        Args:
            ckpt_dir: the folder; with ``shard``, None on ranks that have nothing to add.
            metadata: what to keep with it; it must have ``steps_completed``, the batches trained.
            shard: all ranks call, and the checkpoint has the files of all. Otherwise only the chief calls.
            selector: takes a path relative to the folder (folders end with ``/``), and returns whether it is saved.

        Raises:
            ValueError: ``metadata`` has no ``steps_completed``.
            RuntimeError: another rank than the chief calls without ``shard``, there is no folder, or ranks have
                different files or metadata of the same name.
        """
        self._check_caller("upload", shard)
        if not shard and ckpt_dir is None:
            raise RuntimeError(
                "cannot call .upload(ckpt_dir=None, shard=False), which would result in doing nothing at all"
            )
        if selector is not None and ckpt_dir is None:
            raise RuntimeError("ckpt_dir has to be provided if selector is not None")
        folder = None if ckpt_dir is None else Path(ckpt_dir)
        names = shares_of(folder, selector, self._distributed if shard else DummyDistributedContext())
        with self._stage(metadata, shard) as (target, name):
            if folder is not None:
                _copy(folder, target, names)
        return name

    @contextlib.contextmanager
    def store_path(self, metadata: dict[str, Any] | None = None, *, shard: bool = False) -> Iterator[tuple[Path, str]]:
        """Provide ``(path, storage_id)`` of a new checkpoint, committed at the end of the block, dropped on an error.

        Args:
            metadata: what to keep with it; it must have ``steps_completed``, the batches trained.
            shard: all ranks call, and get the same folder. Otherwise only the chief calls.

        Raises:
            ValueError: ``metadata`` has no ``steps_completed``.
            RuntimeError: another rank than the chief calls without ``shard``, or the ranks' metadata differ.
        """
        self._check_caller("store_path", shard)
        with self._stage(metadata, shard) as staged:
            yield staged

    def download(
        self,
        storage_id: str,
        ckpt_dir: str | os.PathLike[str],
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        *,
        selector: Callable[[str], bool] | None = None,
    ) -> None:
        """Copy a checkpoint's files into a folder, which is made if needed. By default all ranks call in step.

        Args:
            storage_id: the checkpoint.
            ckpt_dir: the folder; files of the same name in it are replaced.
            download_mode: whether the ranks of a node share one copy.
            selector: takes a path relative to the checkpoint (folders end with ``/``), and returns whether it is
                wanted; what any of the ranks that share a copy wants is copied.

        Raises:
            CheckpointNotFound: there is no such checkpoint.
            InvalidCheckpointException: it is damaged.
        """
        together = DownloadMode(download_mode) is DownloadMode.LocalWorkersShareDownload
        source = self._find(storage_id, together)
        names = listed(source)
        wanted = names if selector is None else [name for name in names if selector(name)]
        if together:
            wanted = sorted({name for own in self._distributed.allgather_local(wanted) for name in own})
        if not together or self._distributed.local_rank == 0:
            _copy(source, Path(ckpt_dir), wanted)
        if together:
            self._distributed.barrier()

    @contextlib.contextmanager
    def restore_path(
        self,
        storage_id: str,
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        *,
        selector: Callable[[str], bool] | None = None,
    ) -> Iterator[Path]:
        """Provide the folder of a checkpoint, to read from. By default all ranks call in step.

        Args:
            storage_id: the checkpoint.
            download_mode: whether all ranks call.
            selector: accepted and not used: nothing is copied.

        Raises:
            CheckpointNotFound: there is no such checkpoint.
            InvalidCheckpointException: it is damaged.
        """
        del selector
        yield self._find(storage_id, DownloadMode(download_mode) is DownloadMode.LocalWorkersShareDownload)

    def get_metadata(self, storage_id: str) -> dict[str, Any]:
        """Return what was saved with a checkpoint; empty when nothing was.

        Raises:
            CheckpointNotFound: there is no such checkpoint.
        """
        path = self._store(together=False).find(storage_id) / _METADATA
        metadata: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        return metadata

    def delete(self, storage_id: str) -> None:
        """Remove a checkpoint, from a remote storage too.

        Raises:
            CheckpointNotFound: there is no such checkpoint.
        """
        from trial_runtime.pytorch._checkpoints import manifest

        store = self._store(together=False)
        path = store.find(storage_id)
        manifest.remove(path)
        if self._settings.remote is not None and path.parent == store.directory:
            from trial_runtime._storage.remote import call

            call(self._settings.remote, "remove", name=path.name)

    def _check_caller(self, method: str, shard: bool) -> None:
        if not shard and self._distributed.rank != 0:
            raise RuntimeError(
                f"cannot call .{method}(shard=False) from non-chief worker (rank={self._distributed.rank})"
            )

    @contextlib.contextmanager
    def _stage(self, metadata: dict[str, Any] | None, shard: bool) -> Iterator[tuple[Path, str]]:
        ranks = self._distributed if shard else DummyDistributedContext()
        steps = {"steps_completed": merge_metadata(ranks, metadata).get("steps_completed")}
        if steps["steps_completed"] is None:
            raise ValueError(_NO_STEPS)
        batches = int(steps["steps_completed"])
        name = ranks.broadcast(f"{batches:08d}-{secrets.token_hex(4)}")
        with self._store(together=shard).stage(name) as staged:
            yield staged.folder, name
            final = merge_metadata(ranks, metadata)  # the program may have added to it
            if ranks.rank == 0:
                text = json.dumps(final, indent=2)
                (staged.folder / _METADATA).write_text(text + "\n", encoding="utf-8")
            ranks.barrier()
            staged.commit({"progress": {"batches": batches}, "world_size": ranks.size}).result()

    def _find(self, storage_id: str, together: bool) -> Path:
        store = self._store(together)
        path = store.find(storage_id)
        store.verify(path)
        return path

    def _store(self, together: bool) -> CheckpointStore:
        """Return the store of all ranks, or of this rank alone."""
        if together not in self._stores:
            from trial_runtime.pytorch._checkpoints.store import CheckpointStore

            ranks = self._distributed if together else DummyDistributedContext()
            directory = self._settings.checkpoint_directory.absolute()
            self._stores[together] = CheckpointStore(directory, ranks, self._settings.remote)
        return self._stores[together]


def _copy(source: Path, target: Path, names: list[str]) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name in names:
        if name.endswith("/"):
            (target / name).mkdir(parents=True, exist_ok=True)
            continue
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / name, target / name)
