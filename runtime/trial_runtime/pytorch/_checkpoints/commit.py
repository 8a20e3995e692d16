"""Commit of a written checkpoint: a thread that ends with the rename from which on the checkpoint is there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trial_runtime._cluster_info import LATEST_FILE
from trial_runtime.pytorch._checkpoints import manifest as _manifest
from trial_runtime.pytorch._checkpoints import staging
from trial_runtime.pytorch._checkpoints.manifest import MANIFEST


class Commit:
    """Thread with the slow part of a save: hashing, fsync, rename, upload.

    Each rank has one at a time. The ranks' threads have collectives, so that they end alike: without an
    error, or with the same one. The thread is waited for at the end of the process.

    Args:
        name: the checkpoint.
        work: runs in the thread; its exception is kept for :meth:`result`.
    """

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self.name = name
        self._work = work
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"commit-{name}")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:
            self._error = error

    @property
    def done(self) -> bool:
        """Return whether the thread has ended, with or without an error."""
        return not self._thread.is_alive()

    def result(self) -> None:
        """Wait until the checkpoint is committed.

        Raises:
            RuntimeError: it could not be; earlier checkpoints are untouched.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error


def commit_folder(temporary: Path, final: Path, manifest: dict[str, Any]) -> None:
    """Give a written checkpoint its final name, from which on it is there, and make it the newest one.

    Args:
        temporary: the staging folder; all its files are on disk.
        final: the folder's name from then on, beside it.
        manifest: what its manifest holds.
    """
    _manifest.write_synced(temporary / MANIFEST, _manifest.text_of(manifest))
    for folder in {temporary, *(path.parent for path in temporary.rglob("*"))}:
        _manifest.sync_folder(folder)
    temporary.rename(final)
    _manifest.sync_folder(final.parent)
    pointer = final / f"{staging.PREFIX}{LATEST_FILE}"  # in here no other run writes
    _manifest.write_synced(pointer, final.name + "\n")
    pointer.replace(final.parent / LATEST_FILE)
    _manifest.sync_folder(final.parent)
