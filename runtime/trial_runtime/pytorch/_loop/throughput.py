"""Throughput of training, and the time left."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from trial_runtime._run_metrics import clock
from trial_runtime.pytorch._loop.progress import Progress
from trial_runtime.pytorch._train_units import Batch, TrainUnit


class Throughput:
    """Speed of training from one report to the next, without validations and checkpoints.

    No device is waited for, and nothing is done between reports.

    Args:
        progress: where training stands.
        length: how long it is going to be.
        samples: how many samples all ranks have trained in this process; None where unknown.

    Attributes:
        doing: ``training``, ``validating`` or ``saving``; at the end ``trained`` or ``stopped``.
        batches_per_second: between the last two reports; None before.
        samples_per_second: likewise; None where samples are not known.
        skipped: optimizer steps that engines skipped between the last two reports, because gradients overflowed.
        skipped_in_all: likewise, since this process began.
    """

    def __init__(self, progress: Progress, length: TrainUnit, samples: Callable[[], int | None] = lambda: None) -> None:
        self.progress = progress
        self.length = length
        self.phase = "training"
        self.batches_per_second: float | None = None
        self.samples_per_second: float | None = None
        self.skipped = 0
        self.skipped_in_all = 0
        self._samples = samples
        self._began: tuple[float, int, int | None] = (time.perf_counter(), 0, None)
        self._skipped_before: int | None = None

    def begin(self, skipped: int = 0) -> None:
        """Start the clock: training begins, or resumes after something else.

        Args:
            skipped: optimizer steps skipped so far, over all resumes.
        """
        self.phase = "training"
        self._began = (time.perf_counter(), self.progress.batches, self._samples())
        if self._skipped_before is None:
            self._skipped_before = skipped

    def report(self, skipped: int = 0) -> None:
        """Measure up to here, at a report."""
        began, batches, samples = self._began
        seconds = max(time.perf_counter() - began, 1e-9)
        now = self._samples()
        self.batches_per_second = (self.progress.batches - batches) / seconds
        self.samples_per_second = None if now is None or samples is None else (now - samples) / seconds
        self.skipped = skipped - (self._skipped_before or 0)
        self.skipped_in_all += self.skipped
        self._skipped_before = skipped

    @property
    def total(self) -> int | None:
        """Return the batches of the whole training; None when it ends with an epoch of unknown length."""
        assert isinstance(self.length.value, int)
        if isinstance(self.length, Batch):
            return self.length.value
        return self.progress.batches_of_epochs(self.length.value)

    @property
    def seconds_left(self) -> float | None:
        """Return the seconds of training left at the last report's speed; None when unknown."""
        if self.total is None or not self.batches_per_second:
            return None
        return max(0, self.total - self.progress.batches) / self.batches_per_second

    def as_dict(self) -> dict[str, Any]:
        """Return the last report's measurements, by name."""
        return {
            "batches_per_second": self.batches_per_second,
            "samples_per_second": self.samples_per_second,
            "skipped_steps": self.skipped,
        }

    def summary(self) -> str:
        """Return speed and time left, such as ``12.3 batches/s, 98.4 samples/s, 0:01:02 left, 2 steps skipped``."""
        parts = []
        for speed, unit in ((self.batches_per_second, "batches"), (self.samples_per_second, "samples")):
            if speed is not None:
                parts.append(f"{speed:,.0f} {unit}/s" if speed >= 1000 else f"{speed:.3g} {unit}/s")
        if self.seconds_left is not None:
            parts.append(f"{clock(self.seconds_left)} left")
        if self.skipped:
            parts.append(f"{self.skipped} steps skipped (overflow)")
        return ", ".join(parts)
