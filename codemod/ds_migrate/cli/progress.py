"""A line on a terminal that shows how far a long run is; short runs never show it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

_AFTER = 0.7  # seconds; a line that is gone at once is only in the way
_EVERY = 0.1
_BAR = 30


class Progress:
    """Shows (done, total) each time that it is called; ``clear()`` takes the line away. ``clock`` counts seconds."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._next = clock() + _AFTER
        self._shown = 0

    def __call__(self, done: int, total: int) -> None:
        now = self._clock()
        if now < self._next:
            return
        self._next = now + _EVERY
        filled = _BAR * done // max(total, 1)
        text = f"  converting {'━' * filled}{'─' * (_BAR - filled)} {done:,}/{total:,}"
        self._draw(text)

    def clear(self) -> None:
        """Take the line away."""
        if self._shown:
            self._draw("")
            self._stream.write("\r")
            self._stream.flush()

    def _draw(self, text: str) -> None:
        self._stream.write("\r" + text.ljust(self._shown))
        self._stream.flush()
        self._shown = len(text)
