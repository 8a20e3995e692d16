"""Signals that ask a program to save and end."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

_ONE_REQUEST_SECONDS = 1.0
_AT_LIMIT = (signal.SIGUSR1, signal.SIGUSR2)


class StopSignals:
    """Handlers of SIGTERM, SIGINT, SIGUSR1 and SIGUSR2; the first signal is kept, a second one acts as without this.

    SIGUSR1 and SIGUSR2, which schedulers send before a time limit, are left to a program that handles them, and never
    act at once. A scheduler may signal every process of a step, where ``ds-train`` or ``torchrun`` forward the signal
    too: the same one within a second is no second request. Only Ctrl-C is never sent twice.

    Args:
        on_first: called with the number of the first signal; None: nothing.
    """

    def __init__(self, on_first: Callable[[int], object] | None = None) -> None:
        self.received = 0
        self._on_first = on_first
        self._since = 0.0
        self._previous: dict[int, Any] = {}

    def install(self) -> None:
        """Begin to listen. Only the main thread can."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGTERM, signal.SIGINT, *_AT_LIMIT):
            if number not in _AT_LIMIT or signal.getsignal(number) is signal.SIG_DFL:
                self._previous[number] = signal.signal(number, self._handle)

    def restore(self) -> None:
        """Restore the handlers that were there before."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        if not self.received:
            self.received, self._since = number, time.monotonic()
            if signal.SIGINT in self._previous:
                signal.signal(signal.SIGINT, self._previous[signal.SIGINT])
            if self._on_first is not None:
                self._on_first(number)
        elif number not in _AT_LIMIT and (
            number != self.received or time.monotonic() - self._since > _ONE_REQUEST_SECONDS
        ):
            self.restore()
            signal.raise_signal(number)
