"""The first error of a run: recorded by the rank that has it, shown last by ``ds-train``.

When a rank fails, the others lose their connections to it and report that. Their errors are printed later and longer.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
import traceback
from pathlib import Path

_CONSEQUENCE = re.compile(
    r"Connection (?:closed by|reset by|refused)|gloo|NCCL|Broken pipe|Socket (?:Timeout|closed)|"
    r"DistBackendError|DistNetworkError|DistStoreError|CollectiveError|Timed out waiting|failed to recv|"
    r"application (?:bounced|bound)",
    re.IGNORECASE,
)


def clear_failures(directory: Path) -> None:
    """Forget the errors of an earlier start of the run in a directory."""
    for file in (directory / "log").glob("rank_*.error"):
        file.unlink(missing_ok=True)


def record_failure(directory: Path, rank: int, error: BaseException | str) -> None:
    """Record a rank's error for :func:`first_failure`, unless it has recorded one."""
    file = directory / "log" / f"rank_{rank}.error"
    text = error if isinstance(error, str) else _summary(error)
    with contextlib.suppress(OSError):  # the disk may be full
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps({"time": time.time(), "rank": rank, "error": text}), encoding="utf-8")


def first_failure(directory: Path) -> tuple[int, str] | None:
    """Return the rank that failed first and its error, in one line.

    Errors that only report a lost connection count when there are no others. None when no rank recorded one.
    """
    found = []
    for file in (directory / "log").glob("rank_*.error"):
        with contextlib.suppress(OSError, ValueError):
            found.append(json.loads(file.read_text(encoding="utf-8")))
    if not found:
        return None
    first = min(found, key=lambda each: (_CONSEQUENCE.search(each["error"]) is not None, each["time"]))
    return int(first["rank"]), str(first["error"])


def is_consequence(error: str) -> bool:
    """Return whether an error only reports that another rank is gone."""
    return _CONSEQUENCE.search(error) is not None


def _summary(error: BaseException) -> str:
    """Return the kind and message of an error, and where in the trial's code it was raised."""
    text = " ".join("".join(traceback.format_exception_only(error)).split())
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_own_code(frame.filename)]
    return f"{text} ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else text


def is_own_code(file: str) -> bool:
    """Return whether a file is the trial's: neither Python's, nor an installed package's, nor the runtime's."""
    parts = Path(file).parts
    if file.startswith("<") or {"site-packages", "dist-packages", "trial_runtime"} & set(parts):
        return False
    return not any(re.fullmatch(r"python3\.\d+", part) for part in parts)
