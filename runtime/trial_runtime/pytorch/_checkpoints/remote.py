"""A run's checkpoints in a remote storage: uploaded after the local commit, fetched when a run resumes elsewhere."""

from __future__ import annotations

import contextlib
import functools
import os
from pathlib import Path
from typing import Any

from trial_runtime import core
from trial_runtime._cluster_info import LATEST_FILE
from trial_runtime._storage import remote
from trial_runtime._storage.remote import Location
from trial_runtime.errors import CheckpointNotFound, CheckpointStorageError
from trial_runtime.pytorch._checkpoints import manifest, staging
from trial_runtime.pytorch._checkpoints.collective import CollectiveError, run_collectively
from trial_runtime.pytorch._checkpoints.disks import Disks


class RemoteCheckpoints:
    """Copies of a directory's checkpoints in a storage; of those uploaded, only the newest stays in the directory.

    It knows the checkpoints of this run only: others of the directory are left alone.

    Args:
        directory: the local checkpoints.
        location: the folder in the storage.
    """

    def __init__(self, directory: Path, location: Location) -> None:
        self.directory = directory
        self.location = location
        self.pending: list[str] = []
        self.disks = Disks()
        self._sent: list[str] = []

    def names(self, ranks: core.DistributedContext) -> list[str]:
        """Return the checkpoints in the storage, oldest first. Collective.

        Raises:
            CheckpointStorageError: on every rank, when it cannot be read.
        """
        with _storage_errors():
            return list(run_collectively(ranks, lambda: remote.call(self.location, "names"))[0])

    def newest_after(self, ranks: core.DistributedContext, name: str | None) -> str | None:
        """Return the newest checkpoint in the storage, where the directory has none, or its newest (``name``) is there
        and is not the newest: the run was resumed elsewhere, or the newest was removed here. Collective.

        Raises:
            CheckpointStorageError: on every rank, when it cannot be read.
        """
        with _storage_errors():
            newest: str | None = run_collectively(ranks, lambda: remote.call(self.location, "beyond", name=name))[0]
            return newest

    def resume_from(self, ranks: core.DistributedContext, name: str) -> None:
        """Record that the run resumes from this checkpoint of the directory. Collective."""
        (self._sent if name in self.names(ranks) else self.pending).append(name)

    def upload(self, ranks: core.DistributedContext) -> None:
        """Upload what is not there yet; remove here what is there and not the newest. Collective.

        Raises:
            CheckpointStorageError: on every rank; what was not sent is sent the next time.
        """
        for name in list(self.pending):
            folder = self.directory / name
            mine = self.disks.own_share(ranks, folder)
            do = functools.partial(remote.call, self.location, name=name, folder=str(folder))
            with _storage_errors():
                run_collectively(ranks, functools.partial(do, "put", files=mine), everywhere=True)
                run_collectively(ranks, functools.partial(do, "commit"))
            self.pending.remove(name)
            self._sent.append(name)
        while len(self._sent) > 1:
            former = self._sent.pop(0)
            if self.disks.is_keeper(ranks):
                manifest.remove(self.directory / former)


def fetch(ranks: core.DistributedContext, source: Location, given: str, directory: Path, disks: Disks) -> Path:
    """Bring a checkpoint from a storage into a directory. Collective.

    Args:
        ranks: they share the files.
        source: the folder of a run's checkpoints.
        given: the checkpoint's name, or ``latest``.
        directory: where it goes, under its name; one that all ranks see and that is there already is taken as it is.
        disks: of the directory; each gets what it lacks.

    Raises:
        CheckpointNotFound: on every rank, when there is none.
        CheckpointStorageError: on every rank, when it could not be fetched.
    """
    with _storage_errors(), contextlib.ExitStack() as stack:
        name, sizes = run_collectively(ranks, lambda: _choose(source, given))[0]
        if not sizes:
            raise CheckpointNotFound(f"There is no checkpoint {given!r} in {source.url}.")
        if not disks.is_shared:
            _complete(ranks, source, directory / name, sizes, disks)
            return directory / name
        final, temporary = directory / name, directory / f"{staging.PREFIX}{name}"
        if not run_collectively(ranks, final.is_dir)[0]:
            run_collectively(ranks, lambda: _enter_staging(temporary, stack))
            mine = manifest.shares(sizes, ranks.size)[ranks.rank]
            get = functools.partial(remote.call, source, "get", name=name, folder=str(temporary), files=mine)
            run_collectively(ranks, get, everywhere=True)
            run_collectively(ranks, functools.partial(os.rename, temporary, final))
        return final


def _complete(
    ranks: core.DistributedContext, source: Location, folder: Path, sizes: dict[str, int], disks: Disks
) -> None:
    """Download what this disk lacks of a checkpoint, its manifest last. Collective."""
    there = manifest.files(folder)
    ranks.allgather(None)  # every rank has looked
    lacking = {name: size for name, size in sizes.items() if there.get(name) != size}
    get = functools.partial(remote.call, source, "get", name=folder.name, folder=str(folder))
    mine = disks.share(ranks, {name: size for name, size in lacking.items() if name != manifest.MANIFEST})
    run_collectively(ranks, lambda: get(files=mine) if mine else None, everywhere=True)
    is_last = manifest.MANIFEST in lacking and disks.is_keeper(ranks)
    run_collectively(ranks, lambda: get(files=[manifest.MANIFEST]) if is_last else None, everywhere=True)


def fetch_url(ranks: core.DistributedContext, url: str, directory: Path, disks: Disks) -> Path:
    """Fetch a checkpoint from its URL, or the newest from a run's; see :func:`fetch`. Collective."""
    with _storage_errors():
        source, name = run_collectively(ranks, lambda: remote.resolve(remote.with_environment_options(url)))[0]
    return fetch(ranks, source, name, directory, disks)


def _enter_staging(folder: Path, staging_exit: contextlib.ExitStack) -> None:
    staging_exit.callback(staging.StagingDirectory(folder).release)


def _choose(source: Location, given: str) -> tuple[str, dict[str, Any]]:
    name = remote.call(source, "latest") if given == LATEST_FILE else given
    return name, remote.call(source, "files", name=name) if name else {}


@contextlib.contextmanager
def _storage_errors() -> Any:
    try:
        yield
    except CollectiveError as error:
        raise CheckpointStorageError(str(error)) from error
