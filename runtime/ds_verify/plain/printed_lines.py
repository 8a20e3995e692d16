"""Lines that a script prints or logs on its first rank: printing another mean is no difference, but noted."""

from __future__ import annotations

import builtins
import contextlib
import functools
import io
import logging
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_MOST = 1000
_AROUND = 40  # characters on each side of a difference
_LAUNCHER_ARGUMENT = re.compile(r"'?local_rank'?[=:] ?-1, |, '?local_rank'?[=:] ?-1")  # in args that a script prints
_CLOSE = 1e-3
"""Printed numbers are rounded. Those of two runs of the original that differ by more vary by themselves: a duration."""


@contextlib.contextmanager
def printed_lines(lines: list[str], home: Path) -> Iterator[None]:
    """Add what ``print()`` writes to the terminal in the block, and what a script logs, up to a thousand lines.

    Args:
        lines: which are added to. home: the folder of the script's code; each run has another one.
    """
    write, handle = builtins.print, logging.Logger.callHandlers

    def add(text: str) -> None:
        lines.extend(line for line in text.replace(str(home), ".").splitlines() if line.strip())

    @functools.wraps(write)
    def printed(*values: Any, **kwargs: Any) -> None:
        if kwargs.get("file") in (None, sys.stdout, sys.stderr) and len(lines) < _MOST:
            text = io.StringIO()
            write(*values, **{**kwargs, "file": text, "flush": False})
            add(text.getvalue())
        write(*values, **kwargs)

    @functools.wraps(handle)
    def logged(logger: logging.Logger, record: logging.LogRecord) -> None:
        if len(lines) < _MOST and Path(record.pathname).is_relative_to(home):
            add(record.getMessage())
        handle(logger, record)

    with mock.patch.object(builtins, "print", printed), mock.patch.object(logging.Logger, "callHandlers", logged):
        yield


def printed_otherwise(original: Sequence[str], control: Sequence[str], converted: Sequence[str]) -> str:
    """Return where a conversion prints other lines than the original; empty where nothing shows it.

    Args:
        original: its lines. control: those of a second run, which show what differs by itself. converted: its lines.
    """
    without_argument = [_LAUNCHER_ARGUMENT.sub("", line) for line in converted]
    for before, again, after in zip(original, control, without_argument, strict=False):
        if _NUMBER.sub("", before) != _NUMBER.sub("", again):
            return ""  # from here on another run is another text
        if _NUMBER.sub("", before) != _NUMBER.sub("", after) or any(
            _is_close(one, two) and not _is_close(one, three)
            for one, two, three in zip(*map(_NUMBER.findall, (before, again, after)), strict=True)
        ):
            return "{!r} became {!r}".format(*_excerpts(before.strip(), after.strip()))
    if len(original) == len(control) != len(converted):
        return f"{len(original)} lines became {len(converted)}"
    return ""


def _excerpts(one: str, other: str) -> tuple[str, str]:
    """Return two lines, of long ones what is around their first difference."""
    same = next((place for place, pair in enumerate(zip(one, other, strict=False)) if len(set(pair)) > 1), 0)
    start = max(same - _AROUND, 0)
    first, second = (line[start : start + 2 * _AROUND] for line in (one, other))
    return ("..." * (start > 0) + first, "..." * (start > 0) + second)


def _is_close(one: str, other: str) -> bool:
    return abs(float(one) - float(other)) <= _CLOSE * max(1.0, abs(float(one)))
