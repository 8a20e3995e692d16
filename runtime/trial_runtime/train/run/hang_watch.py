"""Watch over ranks that wait for each other forever: after a time it is reported which rank waits where, and for whom.

A thread of each rank looks at what the rank's main thread executes, some times in the timeout, and writes to a file how
long that has not changed. Nothing in training takes part in it. When no rank has moved for the timeout, one of them
reports where each is, and all end. A rank that waits while another one works (evaluates a whole dataset, for example)
is no hang.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import functools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from ds_migrate.command_line import print_error

from trial_runtime._atomic_file import write_whole
from trial_runtime.train.run.failure import is_own_code, record_failure

VARIABLE = "DS_TRAIN_HANG_TIMEOUT"
"""Environment variable with the seconds after which a hang is reported; absent: never."""

EXIT_CODE = 1
_LOOKS = 8  # in the timeout
_WAITS = (
    "torch/distributed/",
    "torch/nn/parallel/distributed.py",
    "torch/autograd/graph.py",
    "deepspeed/comm/",
    "trial_runtime/core/",
)
_MOMENT = 2.0


@dataclasses.dataclass(frozen=True)
class Position:
    """The position of a rank in its code.

    Attributes:
        rank: the rank.
        place: the innermost function, and the line of the trial's code that led there.
        waits: whether it waits for other ranks there.
        seconds: for how long nothing has changed.
    """

    rank: int
    place: str
    waits: bool
    seconds: float


def watch(directory: Path, rank: int, size: int, timeout: float, report: Callable[[str], None] | None = None) -> None:
    """Start to watch this process's main thread.

    Args:
        directory: the run directory, which the ranks share.
        rank, size: this rank, and the number of ranks.
        timeout: seconds.
        report: called with the sentence about the hang, by one rank; by default it goes to stderr, and is recorded as
            the rank's failure.
    """
    (directory / "log").mkdir(parents=True, exist_ok=True)
    _file(directory, rank).unlink(missing_ok=True)
    arguments = (directory, rank, size, timeout, report or functools.partial(_record, directory, rank))
    threading.Thread(target=_watch, args=arguments, name="hang-watch", daemon=True).start()


def leave(directory: Path, rank: int) -> None:
    """Let the others know that this rank has ended, rather than hangs."""
    if os.environ.get(VARIABLE):
        _write(directory, Position(rank, "", waits=False, seconds=float("inf")))


def describe(positions: Sequence[Position | None]) -> str:
    """Return which rank waits where, and for whom, in one line.

    Args:
        positions: of each rank; None: it does not report, because it was stopped or its machine is gone.
    """
    parts, blamed = [], [rank for rank, position in enumerate(positions) if position is None or not position.waits]
    for rank, position in enumerate(positions):
        if position is None:
            parts.append(f"rank {rank} does not respond")
        elif not position.place:
            parts.append(f"rank {rank} has ended")
        elif position.waits:
            others = [other for other in blamed if other != rank]
            whom = f" for rank{'s' if len(others) > 1 else ''} {', '.join(map(str, others))}" if others else ""
            parts.append(f"rank {rank} waits{whom} in {position.place}")
        else:
            parts.append(f"rank {rank} is in {position.place}")
    if not blamed and len(positions) > 1:
        parts.append("all wait for each other: the ranks do not make the same calls")
    return "; ".join(parts)


def place_of(frame: FrameType | None) -> tuple[str, bool]:
    """Return where a thread is: ``all_reduce (model_def.py:41)``, and whether it waits for other ranks there."""
    innermost, own, waits = frame, None, False
    while frame is not None:
        file = frame.f_code.co_filename.replace(os.sep, "/")
        waits = waits or any(part in file for part in _WAITS)
        if own is None and is_own_code(file):
            own = frame
        frame = frame.f_back
    if innermost is None:
        return "?", False
    where = own or innermost
    return f"{innermost.f_code.co_name} ({Path(where.f_code.co_filename).name}:{where.f_lineno})", waits


def is_runnable(native_id: int) -> bool:
    """Return whether a thread has a processor or waits for one, as on a machine with more work than processors."""
    with contextlib.suppress(OSError):
        stat = Path(f"/proc/self/task/{native_id}/stat").read_text(encoding="utf-8", errors="replace")
        return stat.rpartition(")")[2].split()[0] == "R" and not _uses_gpu()
    return False


def _record(directory: Path, rank: int, text: str) -> None:
    record_failure(directory, rank, text)
    print_error("ds-train", text)


def _watch(directory: Path, rank: int, size: int, timeout: float, report: Callable[[str], None]) -> None:
    thread = threading.main_thread()
    main, native = thread.ident, thread.native_id
    assert main is not None and native is not None
    interval = _interval(timeout)
    former, since, used = None, time.monotonic(), 0.0
    while True:
        time.sleep(interval)
        frame = sys._current_frames().get(main)
        place, waits = place_of(frame)
        now, cpu = _fingerprint(frame), _processor_seconds(main)
        # A thread that waits for gloo sleeps; a long backward pass computes, though it may end in such a wait.
        computes = cpu - used > interval / 20 or is_runnable(native)
        if now != former or computes:
            former, since = now, time.monotonic()
        used = cpu
        _write(directory, Position(rank, place, waits, time.monotonic() - since))
        if time.monotonic() - since >= timeout:
            positions = [_read(directory, other, 3 * interval + _MOMENT) for other in range(size)]
            if all(position is None or position.seconds >= timeout for position in positions):
                _end(directory, rank, timeout, positions, report)


def _interval(timeout: float) -> float:
    """Return the seconds between two looks."""
    return max(0.1, timeout / _LOOKS)


def _end(
    directory: Path, rank: int, timeout: float, positions: Sequence[Position | None], report: Callable[[str], None]
) -> None:
    """Report the hang and end the process: the main thread cannot."""
    reporter = next(position.rank for position in positions if position is not None)
    if rank == reporter:
        report(f"nothing has moved for {timeout:g} s: {describe(positions)}")
    else:
        time.sleep(_interval(timeout) + _MOMENT)  # its report comes first: it may have looked just before
    with contextlib.suppress(OSError), (directory / "log" / f"rank_{rank}.log").open("a", encoding="utf-8") as log:
        faulthandler.dump_traceback(file=log)
    os._exit(EXIT_CODE)


def _processor_seconds(thread: int) -> float:
    """Return the CPU time that a thread has used. With a GPU always 0: there the thread is busy while it waits."""
    return 0.0 if _uses_gpu() else time.clock_gettime(time.pthread_getcpuclockid(thread))


def _uses_gpu() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()


def _fingerprint(frame: FrameType | None) -> tuple[tuple[int, int], ...]:
    found = []
    while frame is not None:
        found.append((id(frame), frame.f_lasti))
        frame = frame.f_back
    return tuple(found)


def _file(directory: Path, rank: int) -> Path:
    return directory / "log" / f"rank_{rank}.position"


def _write(directory: Path, position: Position) -> None:
    with contextlib.suppress(OSError):
        write_whole(_file(directory, position.rank), json.dumps(dataclasses.asdict(position)))


def _read(directory: Path, rank: int, oldest: float) -> Position | None:
    """Return where a rank is; None when it has not reported for ``oldest`` seconds."""
    file = _file(directory, rank)
    try:
        age = time.time() - file.stat().st_mtime
        position = Position(**json.loads(file.read_text(encoding="utf-8")))
        return position if age <= oldest or not position.place else None
    except (OSError, ValueError, TypeError):
        return None
