"""Checkpoints on disk: written to a staging folder, committed by a rename, verified before they are read.

::

    checkpoints/
      latest                     name of the newest checkpoint, one line
      00000010-5f0c1a2b/         batches trained, and a random suffix
        manifest.json            written last: sizes and hashes of all other files, progress, versions, world size
        rank_0.pt ...            each rank's generators, data position, callbacks
        load_data.json           how to make the trial again
        code/                    the modules that the trial imports from its own directory
        state_dict.pth           PyTorchTrial: models, optimizers, schedulers
        model0/ ...              DeepSpeedTrial: each engine's files

A checkpoint is there when it has its final name; a crash leaves a ``.tmp-`` folder at most. With a remote storage the
same is there too, and a checkpoint is there when its manifest is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from trial_runtime import core
from trial_runtime._cluster_info import LATEST_FILE, newest_checkpoint
from trial_runtime._storage import remote as _remote
from trial_runtime._storage.remote import Location
from trial_runtime.errors import (
    CheckpointNotFound,
    CheckpointStorageError,
)
from trial_runtime.pytorch._checkpoints import manifest as _manifest
from trial_runtime.pytorch._checkpoints import staging
from trial_runtime.pytorch._checkpoints.collective import CollectiveError, run_collectively
from trial_runtime.pytorch._checkpoints.commit import Commit, commit_folder
from trial_runtime.pytorch._checkpoints.disks import Disks, find_disks, refuse_separate
from trial_runtime.pytorch._checkpoints.remote import RemoteCheckpoints, fetch, fetch_url
from trial_runtime.pytorch._checkpoints.verification import verify_origin

logger = logging.getLogger("trial_runtime.pytorch")

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class StagedCheckpoint:
    """Checkpoint that is being written.

    Attributes:
        folder: where its files go; the same on all ranks.
        commit: begins to commit it, with further entries of the manifest. Collective.
    """

    folder: Path
    commit: Callable[[dict[str, Any]], Commit]


class CheckpointStore:
    """Folder of checkpoints that all ranks see, or with a remote storage one on each machine. Methods are collective.

    Args:
        directory: the folder; made when the first checkpoint is saved.
        distributed: the ranks.
        remote: where they are kept too; older ones only there.
    """

    def __init__(self, directory: Path, distributed: core.DistributedContext, remote: Location | None = None) -> None:
        self.directory = directory
        self.distributed = distributed
        self.remote = None if remote is None else RemoteCheckpoints(directory, remote)
        self._commit_ranks: core.DistributedContext | None = None
        self._disks: Disks | None = None
        self._is_foreign = False  # the checkpoint that was found is another run's

    @property
    def disks(self) -> Disks:
        """Return which ranks see the same folder. Collective, the first time.

        Raises:
            CheckpointStorageError: on every rank, when each machine has a separate one and there is no remote storage.
        """
        if self._disks is None:
            self._disks = find_disks(self.distributed, self.directory)
            if not self._disks.is_shared and self.remote is None:
                refuse_separate(self.distributed, self.directory)
            if self.remote is not None:
                self.remote.disks = self._disks
        return self._disks

    def save(self, name: str, write: Callable[[Path], None], facts: dict[str, Any]) -> Commit:
        """Write a checkpoint and begin to commit it: either it will be whole under its name, or there is none of it.

        Args:
            name: the folder's name.
            write: puts this rank's files into the folder it is given; called on every rank.
            facts: further entries of the manifest.

        Returns:
            the commit in progress; ask for its result before the next save and before the end.

        Raises:
            RuntimeError: on every rank, when a rank could not write.
        """
        with self.stage(name) as staged:
            self._run(self.distributed, "write", lambda: write(staged.folder), everywhere=True)
            return staged.commit(facts)

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[StagedCheckpoint]:
        """Provide the folder of a checkpoint that is being written. It goes at the end, unless its commit has begun.

        Args:
            name: the checkpoint's name.
        """
        if self._commit_ranks is None:
            self._commit_ranks = self.distributed._with_separate_groups()
        temporary = self.directory / f"{staging.PREFIX}{name}"
        with contextlib.ExitStack() as stack:
            self._run_on_disks(self.distributed, "begin", lambda: self._begin(temporary, stack))

            def commit(facts: dict[str, Any]) -> Commit:
                staging_exit = stack.pop_all()
                return Commit(name, lambda: self._commit(temporary, self.directory / name, facts, staging_exit))

            yield StagedCheckpoint(temporary, commit)

    def start_from(self, path: Path | None) -> None:
        """Prepare the store for a run that starts from ``path``, or anew.

        Raises:
            CheckpointStorageError: on every rank, when nothing can be written to the folder, or the remote storage does
                not answer.
        """
        try:
            run_collectively(self.distributed, lambda: _check_writable(self.directory), everywhere=True)
        except CollectiveError as error:
            raise CheckpointStorageError(f"Checkpoints cannot be saved to {self.directory}: {error}.") from error
        _ = self.disks
        if self.remote is None:
            return
        if path is not None and path.parent == self.directory and not self._is_foreign:
            self.remote.resume_from(self.distributed, path.name)
        else:
            self.remote.names(self.distributed)

    def finish(self) -> None:
        """Upload, at the end of the run, what could not be uploaded before.

        Raises:
            CheckpointStorageError: on every rank, when it still cannot be.
        """
        if self.remote is None or not self.remote.pending:
            return
        try:
            self.remote.upload(self.distributed)
        except CheckpointStorageError as error:
            raise CheckpointStorageError(
                f"{error}. Not uploaded: {', '.join(self.remote.pending)}, whole in {self.directory}. Continue the run "
                "from there to upload them."
            ) from error

    def find(self, given: str) -> Path:
        """Find the checkpoint of this name in the store, or at this path or URL; a remote one is fetched.

        Raises:
            CheckpointNotFound: when there is none.
            CheckpointStorageError: when the remote storage does not answer.
        """
        if given in ("", ".", "..") or "\0" in given:  # the folder of the checkpoints, or the run's, is none
            raise CheckpointNotFound(f"There is no checkpoint {given!r}: it is no name of one, and no path.")
        disks = self.disks
        if _remote.is_url(given):
            self._is_foreign = self.remote is None or not given.startswith(self.remote.location.url)
            return fetch_url(self.distributed, given, self.directory, disks)
        if given == LATEST_FILE:
            here = self.distributed.broadcast(newest_checkpoint(self.directory))
            newer = (
                None if self.remote is None else self.remote.newest_after(self.distributed, here and Path(here).name)
            )
            given = newer or here or given
        if not disks.is_shared:
            return self._find_on_disks(given)
        for path in (self.directory / given, Path(given)):
            if path.is_dir():
                return path
        if self.remote is not None:
            return fetch(self.distributed, self.remote.location, given, self.directory, disks)
        there = ", ".join(_manifest.committed(self.directory)) or "none"
        raise CheckpointNotFound(
            f"There is no checkpoint {given!r}, neither at this path nor in {self.directory} (there: {there})."
        )

    def _find_on_disks(self, given: str) -> Path:
        """Find a checkpoint that is not the same folder on all machines: each fetches what it lacks."""
        assert self.remote is not None
        is_own = self.distributed.broadcast(Path(given).parent in (Path(), self.directory))
        if not is_own and all(self.distributed.allgather(Path(given).is_dir())):
            return Path(given)
        return fetch(self.distributed, self.remote.location, Path(given).name, self.directory, self.disks)

    def verify(self, path: Path) -> dict[str, Any]:
        """Check that all files are there and whole; the manifest (empty for one that Determined wrote).

        Raises:
            InvalidCheckpointException: on every rank, naming the files, and the newest intact checkpoint.
        """
        return self.verify_origin(path)[0]

    def verify_origin(self, path: Path) -> tuple[dict[str, Any], bool]:
        """Check as :func:`trial_runtime.pytorch._checkpoints.verification.verify_origin` does."""
        return verify_origin(self.distributed, self.disks, path)

    def _begin(self, temporary: Path, staging_exit: contextlib.ExitStack) -> None:
        staging.sweep(self.directory)
        staging_exit.callback(staging.StagingDirectory(temporary).release)

    def _commit(self, temporary: Path, final: Path, facts: dict[str, Any], staging_exit: contextlib.ExitStack) -> None:
        ranks = self._commit_ranks
        assert ranks is not None
        with staging_exit:
            mine = self.disks.own_share(ranks, temporary)
            described = self._run(
                ranks, "sync", lambda: {n: _manifest.describe(temporary / n, sync=True) for n in mine}, everywhere=True
            )
            files = {name: about for part in described for name, about in part.items()}
            whole = {**facts, "files": files}
            self._run_on_disks(ranks, "commit", lambda: commit_folder(temporary, final, whole))
        if self.remote is not None:
            self.remote.pending.append(final.name)
            try:
                self.remote.upload(ranks)
            except CheckpointStorageError as error:
                logger.warning(f"Checkpoint {final.name} was not uploaded: {error}. It is tried again after the next.")

    def _run_on_disks(self, ranks: core.DistributedContext, what: str, act: Callable[[], object]) -> None:
        """Run ``act`` on one rank of each disk. Collective."""
        is_keeper = self.disks.is_keeper(ranks)
        self._run(ranks, what, lambda: act() if is_keeper else None, everywhere=True)

    def _run(
        self, ranks: core.DistributedContext, what: str, act: Callable[[], _T], everywhere: bool = False
    ) -> list[_T]:
        try:
            return run_collectively(ranks, act, everywhere)
        except CollectiveError as error:
            raise RuntimeError(
                f"Saving a checkpoint to {self.directory} failed ({what}): {error}. Earlier checkpoints are untouched."
            ) from error


def _check_writable(directory: Path) -> None:
    """Check the folder before training rather than at the first save.

    Raises:
        OSError: nothing can be written to it, or it cannot be made.
    """
    there = next(path for path in (directory, *directory.absolute().parents) if os.path.lexists(path))
    if not there.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "no folder, or a link to none", str(there))
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "nothing may be written here", str(there))
