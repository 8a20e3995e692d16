"""Signals that end a run: all ranks save the same step and leave together."""

from __future__ import annotations

import time

from trial_runtime import core
from trial_runtime.core._stop_signals import StopSignals

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
        self._signals = StopSignals()
        self._agreed = 0
        self._checked, self._next_check, self._since = batches, batches + 1, time.monotonic()

    def __enter__(self) -> Interruption:
        self._signals.install()
        return self

    def __exit__(self, *_: object) -> None:
        self._signals.restore()

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
            self._agreed = self._signals.received
            return bool(self._agreed) or (now and wanted)
        if not now and batches < self._next_check:
            return False
        seconds_per_batch = (time.monotonic() - self._since) / max(batches - self._checked, 1)
        gathered = self.distributed.allgather((self._signals.received, now and wanted, seconds_per_batch))
        self._agreed = max(received for received, _, _ in gathered)
        if batches > self._checked:
            slowest = max(seconds_per_batch for _, _, seconds_per_batch in gathered)
            self._next_check = batches + max(1, min(1000, int(_SECONDS_BETWEEN_CHECKS / max(slowest, 1e-6))))
            self._checked, self._since = batches, time.monotonic()
        return bool(self._agreed) or any(wanted for _, wanted, _ in gathered)
