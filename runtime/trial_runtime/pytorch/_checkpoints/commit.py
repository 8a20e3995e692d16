"""The end of saving, beside training: a thread that makes a written checkpoint count."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Commit:
    """Runs the slow rest of a save (hashing, fsync, rename, upload) in a thread.

    Each rank has one at a time. The ranks' threads talk among themselves, so that they end alike: all well, or all with
    the same error. The thread is waited for at the end of the process.

    Args:
        name: the checkpoint.
        work: what to do; what it raises is kept for :meth:`result`.
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
