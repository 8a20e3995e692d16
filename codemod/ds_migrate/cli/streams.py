"""Where the tool talks: data on stdout, talk on stderr, paths as seen from here. Streams that close are no fault."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing's own name for it costs 2 ms of every run
if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)
    sys.stdout.flush()


def say(*lines: str) -> None:
    """Talk; a reader who left does not matter."""
    try:
        for line in lines:
            print(line, file=sys.stderr)
    except BrokenPipeError:
        _redirect_to_nowhere(sys.stderr.fileno())


def prepare_streams() -> None:
    """A character that the locale cannot say is escaped, and a closed stream takes everything."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115 - as long as the process
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def flushed(code: int) -> int:
    """``code``, after a flush that survives a closed pipe, so that the interpreter's own flush does too."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _redirect_to_nowhere(sys.stdout.fileno())
    return code


def _redirect_to_nowhere(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def relative(path: Path) -> str:
    """As seen from here, when it is below."""
    folder = here()
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


def here() -> Path:
    """The current folder, links resolved."""
    return real(os.curdir)


def real(name: str) -> Path:
    """Absolute, links resolved."""
    from pathlib import Path

    return Path(os.path.realpath(name))
