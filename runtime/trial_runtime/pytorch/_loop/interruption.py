"""Signals that end a run: all ranks save the same step and leave together."""

from __future__ import annotations

import logging
import signal
import threading
import time
from types import FrameType
from typing import Any

from trial_runtime import core
from trial_runtime.core._preempt import ending_signals

logger = logging.getLogger("trial_runtime.pytorch")

_SECONDS_BETWEEN_CHECKS = 1.0


class Interruption:
    """Signal handler while it is entered; the first signal requests a stop, a second one acts as it would without this.

    Ranks get a signal at different moments, or only some get it, so they exchange what they got: after
    so many batches that about a second has passed, the same number on all ranks.

    Args:
        distributed: the ranks.
        batches: batches trained so far.
    """

    def __init__(self, distributed: core.DistributedContext, batches: int) -> None:
        self.distributed = distributed
        self._received = 0
        self._agreed = 0
        self._previous_handlers: dict[int, Any] = {}
        self._checked, self._next_check, self._since = batches, batches + 1, time.monotonic()

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            for number in ending_signals():
                self._previous_handlers[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)
        self._previous_handlers = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._received = number
        for other, handler in self._previous_handlers.items():
            signal.signal(other, handler)

    @property
    def exit_code(self) -> int:
        """Return 128 plus the number of the signal that all ranks stop for; 0 without one."""
        return 128 + self._agreed if self._agreed else 0

    def should_stop(self, batches: int, wanted: bool = False, now: bool = False) -> bool:
        """Return whether training stops after this batch. Collective when a check is due, or ``now``.

        Args:
            batches: batches trained, the same on all ranks.
            wanted: whether this rank wants to stop for another reason; considered only when ``now``.
            now: check in any case.
        """
        if self.distributed.size == 1:
            self._agreed = self._received
            return bool(self._agreed) or (now and wanted)
        if not now and batches < self._next_check:
            return False
        seconds_per_batch = (time.monotonic() - self._since) / max(batches - self._checked, 1)
        gathered = self.distributed.allgather((self._received, now and wanted, seconds_per_batch))
        self._agreed = max(received for received, _, _ in gathered)
        if batches > self._checked:
            slowest = max(seconds_per_batch for _, _, seconds_per_batch in gathered)
            self._next_check = batches + max(1, min(1000, int(_SECONDS_BETWEEN_CHECKS / max(slowest, 1e-6))))
            self._checked, self._since = batches, time.monotonic()
        return bool(self._agreed) or any(wanted for _, wanted, _ in gathered)
