"""Commit of a written checkpoint, in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable


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
