"""Copy of a rank's output in its log file."""

from __future__ import annotations

import io
import logging
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from trial_runtime import LOG_FORMAT

_STYLE = re.compile(r"\x1b\[[\d;]*m")


class Tee(io.TextIOBase):
    """A text stream that writes to ``console`` and to ``log``; everything else is delegated to ``console``.

    Args:
        console: the process's own stream.
        log: an open text file.
        prefix: put before each line on the console, to distinguish ranks.
    """

    def __init__(self, console: TextIO, log: TextIO, prefix: str = "") -> None:
        self.console = console
        self._log = log
        self._prefix = prefix
        self._pending = ""

    def write(self, text: str) -> int:
        """Write ``text`` to both; the number of characters."""
        self._log.write(_STYLE.sub("", text))
        if not self._prefix:
            return self.console.write(text)
        # Whole lines only, so that lines of several ranks do not mix.
        lines = (self._pending + text).splitlines(keepends=True)
        self._pending = lines.pop() if lines and not lines[-1].endswith(("\n", "\r")) else ""
        for line in lines:
            self.console.write(self._prefix + line)
        return len(text)

    def write_to_log(self, text: str) -> None:
        """Write ``text`` to the log alone."""
        self._log.write(text)

    def flush(self) -> None:
        """Flush both, an unfinished line too."""
        self._log.flush()
        if self._pending:
            self.console.write(self._prefix + self._pending)
            self._pending = ""
        self.console.flush()

    def isatty(self) -> bool:
        """Return whether the console is a terminal."""
        return self.console.isatty()

    def fileno(self) -> int:
        """Return the console's file descriptor; what is written to it directly does not reach the log file."""
        return self.console.fileno()

    def writable(self) -> bool:
        """Return True."""
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Return the console's encoding."""
        return self.console.encoding

    @property
    def buffer(self) -> Any:
        """Return the console's byte stream; what is written to it directly does not reach the log file."""
        return self.console.buffer


def record_output(directory: Path, rank: int, size: int) -> None:
    """Copy this process's stdout and stderr to ``directory/log/rank_<rank>.log``."""
    path = directory / "log" / f"rank_{rank}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    log = path.open("a", encoding="utf-8", errors="backslashreplace", buffering=1)
    prefix = f"[rank {rank}] " if size > 1 else ""
    sys.stdout = Tee(sys.stdout, log, prefix)
    sys.stderr = Tee(sys.stderr, log, prefix)


if TYPE_CHECKING:
    _StreamHandler = logging.StreamHandler[TextIO]
else:  # Python 3.10 has no generic one
    _StreamHandler = logging.StreamHandler


def _concerns_user(record: logging.LogRecord) -> bool:
    """Return whether a record is none of torch's about its own caches, which it logs when a run is interrupted."""
    return record.levelno > logging.INFO or not record.name.startswith("torch.")


class _Fallback(_StreamHandler):
    """Handler that prints records only while the program has not configured logging itself."""

    def filter(self, record: logging.LogRecord) -> Any:
        return not logging.getLogger().handlers and super().filter(record)


def configure_logging(rank: int, debug: bool, own_program: bool) -> None:
    """Show log records: of all ranks from WARNING on, of the chief from INFO on.

    Args:
        rank: this process's.
        debug: the config's ``debug``: show all records.
        own_program: a script is run, which may configure logging itself; then only the runtime's own records are shown,
            and only as long as it has not.
    """
    level = logging.DEBUG if debug else logging.INFO if rank == 0 else logging.WARNING
    if not own_program:
        logging.basicConfig(level=level, format=LOG_FORMAT, stream=sys.stderr)
        if not debug:
            for each in logging.getLogger().handlers:
                each.addFilter(_concerns_user)
        return
    handler = _Fallback(sys.stderr)
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    runtime = logging.getLogger("trial_runtime")
    runtime.addHandler(handler)
    runtime.setLevel(level)
