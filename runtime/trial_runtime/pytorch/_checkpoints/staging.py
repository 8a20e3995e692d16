"""Folders of unfinished checkpoints: their locks, and removal of those that killed processes left."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from pathlib import Path

PREFIX = ".tmp-"
_CHECKPOINT = re.compile(re.escape(PREFIX) + r"\d{8,}-[0-9a-f]{8}")


class StagingDirectory:
    """New, empty folder that this process writes and holds a lock of, so that no other run removes it.

    Args:
        folder: made here; its parents too.
    """

    def __init__(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.folder = folder
        self._descriptor = os.open(folder, os.O_RDONLY)
        with contextlib.suppress(OSError):  # a file system without locks: nothing is ever swept there
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release(self) -> None:
        """Release the lock, and remove the folder unless it was renamed: the disk may be full."""
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._descriptor)


def sweep(directory: Path) -> None:
    """Remove checkpoints that were never finished and whose writer is gone.

    Other runs may write into the same directory: theirs are locked and stay.
    """
    for folder in directory.glob(f"{PREFIX}*"):
        if not _CHECKPOINT.fullmatch(folder.name):
            continue
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)
