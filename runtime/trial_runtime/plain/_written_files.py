"""The warning about files that several ranks write, each over the others'."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch.distributed as dist

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_SHARED = (".lock", ".pyc")  # and what is in a folder whose name begins with a dot, as ~/.cache
_DEVICES = (("dev",), ("proc",), ("sys",))
_LIBRARIES = (sysconfig.get_path("stdlib"), str(Path(__file__).parents[1]), "<frozen")
_watch: _Watch | None = None  # of this process, or of the one that forked it


def watch_written_files() -> None:
    """Have a rank warn of each file that it writes and another one has written, by the line of the script.

    What a script does once each rank does: of a file that several write, one's is left, or a mixture. Files that
    programs share by design are left out (locks, caches, devices), as are those of processes that a rank starts, of
    libraries that write by themselves, as ``torch.save`` does, and of blocks under :func:`unwatched`.
    """
    global _watch
    if _watch is None:
        sys.addaudithook(_on_event)  # for good: Python cannot take it back
    _watch = _Watch()


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """Leave out what a block writes, as one where ranks take turns."""
    watch = _watch
    if watch is not None:
        watch.is_off = True
    try:
        yield
    finally:
        if watch is not None:
            watch.is_off = False


def _on_event(event: str, args: tuple[Any, ...]) -> None:
    if event == "open":
        path, mode, flags = args
        is_written = (isinstance(flags, int) and flags & _WRITES) or (isinstance(mode, str) and set(mode) & set("wax+"))
    else:
        path, is_written = args[0] if event == "shutil.rmtree" else None, True
    if is_written and isinstance(path, (str, bytes, os.PathLike)) and _watch is not None:
        _watch.note(os.fsdecode(path))


class _Watch:
    """The files that a rank has written. Ranks compare through their group's store, which no other rank waits for."""

    def __init__(self) -> None:
        self.is_off = False
        self._process, self._host, self._rank = os.getpid(), socket.gethostname(), os.environ["RANK"]
        self._seen: set[Path] = set()

    def note(self, given: str) -> None:
        """Warn where another rank has written a path."""
        if self.is_off or os.getpid() != self._process:
            return
        try:
            path = Path(given).resolve()
            is_known = path in self._seen or _is_shared(path)
        except (OSError, RuntimeError, ValueError):  # as in a folder that is gone: opening the file says what is wrong
            return
        if is_known:
            return
        self._seen.add(path)
        self.is_off = True  # for what is written from here
        try:
            store = dist.distributed_c10d._get_default_store()
            key = f"trial_runtime.plain/written/{self._host}/{path}"
            first = store.compare_set(key, "", self._rank).decode()
        except (RuntimeError, ValueError, NotImplementedError):  # the group has ended, or its store cannot compare
            return
        finally:
            self.is_off = False
        if first != self._rank:
            file, line = _line_of_script()
            warnings.warn_explicit(
                f"ranks {first} and {self._rank} both write {path}: what one of them writes is lost, or mixed with the "
                "other's. Write it on rank 0 alone (if is_main_rank():), or under a name for each rank",
                UserWarning,
                file,
                line,
            )


def _is_shared(path: Path) -> bool:
    """Return whether programs share a file by design."""
    below = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    is_hidden = any(part.startswith(".") for part in below.parts)
    return is_hidden or path.suffix in _SHARED or path.parts[1:2] in _DEVICES


def _line_of_script() -> tuple[str, int]:
    """Return the file and the line of the innermost call that is no library's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("<unknown>", 0)


def _is_library(file: str) -> bool:
    return file.startswith(_LIBRARIES) or "site-packages" in file or "dist-packages" in file
