"""Sink that notices training whose loss is not a number any more, and reports it loudly instead of once a report."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

from trial_runtime.errors import TrainingDivergedError
from trial_runtime.pytorch._loop.throughput import Throughput

logger = logging.getLogger("trial_runtime.pytorch")


class DivergenceSink:
    """Reports once that training diverged, and again at the end if it never recovered.

    It counts as diverged when, over a whole report, each batch's loss is NaN or infinite: a metric with ``loss`` in its
    name, or any metric while engines skip steps.

    Args:
        throughput: counts skipped steps.
        request_stop: ends training; None: it continues.
    """

    def __init__(self, throughput: Throughput, request_stop: Callable[[], None] | None = None) -> None:
        self._throughput = throughput
        self._request_stop = request_stop
        self._reported = 0
        self._since: tuple[str, int] | None = None

    def on_training_metrics(
        self, steps_completed: int, metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]
    ) -> None:
        del metrics
        first, self._reported = self._reported + 1, steps_completed
        name = self._diverged_metric(batch_metrics)
        if name is None:
            self._since = None
        elif self._since is None:
            self._since = (name, first)
            logger.error(f"Training diverged: {self._in_words(steps_completed)}.")
            if self._request_stop is not None:
                self._request_stop()

    def on_validation_metrics(self, steps_completed: int, metrics: dict[str, Any]) -> None:
        del metrics
        self._reported = steps_completed

    def finish(self) -> int | None:
        """Report at the end that training never recovered, and return the first batch of that; None if it is sound.

        Raises:
            TrainingDivergedError: a stop was requested for it.
        """
        if self._since is None:
            return None
        message = f"Training diverged and never recovered: {self._in_words(self._reported)}."
        if self._request_stop is not None:
            raise TrainingDivergedError(message)
        logger.error(f"{message} The weights that were saved since are of no use; --stop-on-nan ends such a run.")
        return self._since[1]

    def _diverged_metric(self, batch_metrics: list[dict[str, Any]]) -> str | None:
        names = batch_metrics[0] if batch_metrics else {}
        for name in names:
            counts = "loss" in name.lower() or self._throughput.skipped >= len(batch_metrics)
            if counts and not any(_is_finite(metrics.get(name)) for metrics in batch_metrics):
                return name
        return None

    def _in_words(self, batches: int) -> str:
        name, first = self._since or ("", 0)
        skipped = self._throughput.skipped_in_all
        steps = f"; {skipped} optimizer steps were skipped, because gradients were infinite or NaN" if skipped else ""
        return f"{name} is NaN or infinite in each batch from {first} to {batches}{steps}"


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except (TypeError, ValueError):  # an array, a text: not what diverges
        return True
