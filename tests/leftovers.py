"""Find the processes that a test has left running."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import time
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_KEPT = b"multiprocessing.resource_tracker"  # ends with this process
_KEPT_NAME = b"ds-fork-server"  # ends with this process, too; its children have its command line but not its name

ROOTS: set[str] = set()
"""Ids of fork servers of this process that are children of another one; what is below them is below this process."""


def adopt_orphans() -> None:
    """Become the parent of each process below this one that loses its own. Linux only."""
    if Path("/proc/self/stat").exists():
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def process_ids() -> set[str]:
    """Return the ids of all processes of the machine; none where there is no /proc."""
    return {name for name in os.listdir("/proc") if name.isdecimal()} if Path("/proc").is_dir() else set()  # noqa: PTH208


def end_leftovers(before: set[str], grace: float = 60) -> list[str]:
    """Kill the processes below this one that did not run before, and return their command lines.

    Args:
        before: the ids of process_ids() at an earlier time.
        grace: seconds for those that are about to end; on a busy machine that takes long.
    """
    left, deadline = _running_below(before), time.monotonic() + grace
    if left:
        gc.collect()  # ends workers of data loaders
    while left and time.monotonic() < deadline:
        time.sleep(0.02)
        left = _running_below(before)
    commands = [f"{pid}: {_command(pid).decode(errors='replace')[:300]}" for pid in left]
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    return commands


def _running_below(before: set[str]) -> list[str]:
    parents = {pid: parent for pid in process_ids() - before if (parent := _parent(pid))}
    return [pid for pid in parents if _is_below(pid, parents) and not _is_kept(pid, parents[pid])]


def _is_kept(pid: str, parent: str) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        if Path(f"/proc/{pid}/comm").read_bytes().strip() == _KEPT_NAME:
            return True
    return parent == str(os.getpid()) and _KEPT in _command(pid)


def _is_below(pid: str, parents: dict[str, str]) -> bool:
    roots = {str(os.getpid()), *ROOTS}
    while pid not in ("0", "1", *roots):
        pid = parents.get(pid) or _parent(pid) or "0"
    return pid in roots


def _parent(pid: str) -> str:
    """Return the parent's id; empty for a process that has ended."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if state in "ZX" else parent


def _command(pid: str) -> bytes:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    return b""
