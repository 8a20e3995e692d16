"""Streams that lead to a terminal, and printing above what is shown at its bottom."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from trial_runtime.train.run.log_tee import Tee

# A forked child, such as a data loader's worker, has no thread that shows anything, and maybe its lock.
_in_children: list[Callable[[], None]] = []
os.register_at_fork(after_in_child=lambda: [take_back() for take_back in _in_children])


def terminal_of(stream: Any) -> TextIO | None:
    """The terminal that a stream leads to, past a copy that goes to a log file; None when it leads elsewhere."""
    stream = stream.console if isinstance(stream, Tee) else stream
    return stream if stream is not None and stream.isatty() else None


@contextlib.contextmanager
def printing_above(console: Any) -> Iterator[None]:
    """Let what is printed and logged to a terminal go through ``console``, a rich one with something at its bottom."""
    from rich.file_proxy import FileProxy

    with contextlib.ExitStack() as stack:
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            terminal = terminal_of(stream)
            if terminal is None:
                continue
            proxy: Any = FileProxy(console, terminal)
            if isinstance(stream, Tee):  # its log file gets the text as it was printed
                stack.enter_context(_set(stream, "console", proxy))
            else:
                stack.enter_context(_set(sys, name, proxy))
                for handler in _handlers_of(stream):
                    stack.enter_context(_set(handler, "stream", proxy))
        yield


@contextlib.contextmanager
def _set(owner: Any, name: str, value: Any) -> Iterator[None]:
    former = getattr(owner, name)
    setattr(owner, name, value)

    def take_back() -> None:
        if getattr(owner, name) is value:
            setattr(owner, name, former)

    _in_children.append(take_back)
    try:
        yield
    finally:
        _in_children.remove(take_back)
        take_back()


def _handlers_of(stream: Any) -> list[logging.Handler]:
    """The handlers of loggers that write to a stream."""
    loggers = [logging.getLogger(), *(logging.getLogger(name) for name in list(logging.root.manager.loggerDict))]
    return [handler for logger in loggers for handler in logger.handlers if getattr(handler, "stream", None) is stream]
