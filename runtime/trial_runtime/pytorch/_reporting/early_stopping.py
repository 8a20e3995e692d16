"""Sink that ends training when a validation metric does not improve any more."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trial_runtime._run_metrics import validation_values
from trial_runtime.errors import MetricNotReportedError
from trial_runtime.train.config.errors import did_you_mean

logger = logging.getLogger("trial_runtime.pytorch")


class EarlyStoppingSink:
    """Requests a stop after so many validations in a row that were not better than the best before them.

    NaN is never better. A run that is resumed counts on from what it had reported before.

    Args:
        patience: how many validations, at least 1.
        metric: the validation metric.
        smaller_is_better: whether a smaller value is better.
        request_stop: ends training at the end of the current step.
        metrics_path: the run's ``metrics.jsonl``.
    """

    def __init__(
        self,
        patience: int,
        metric: str,
        smaller_is_better: bool,
        request_stop: Callable[[], None],
        metrics_path: Path | None = None,
    ) -> None:
        self._patience = patience
        self._metric = metric
        self._sign = 1 if smaller_is_better else -1
        self._request_stop = request_stop
        self._values = {} if metrics_path is None else validation_values(metrics_path, metric)

    def on_training_metrics(
        self, steps_completed: int, metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]
    ) -> None:
        """Receive a report of training metrics, which decide nothing."""

    def on_validation_metrics(self, steps_completed: int, metrics: dict[str, Any]) -> None:
        """Receive the metrics of a validation.

        Raises:
            MetricNotReportedError: the metric is not among them.
        """
        if self._metric not in metrics:
            raise MetricNotReportedError(
                f"early stopping compares the metric {self._metric!r} (searcher.metric), but the trial's validation "
                f"metrics are {sorted(metrics)}{did_you_mean(self._metric, metrics)}."
            )
        # A run that resumes from an earlier checkpoint validates again: the later report counts.
        self._values = {batches: value for batches, value in self._values.items() if batches < steps_completed}
        self._values[steps_completed] = float(metrics[self._metric])
        without = self._validations_since_best()
        if without >= self._patience:
            logger.info(
                f"Stopped early: {self._metric} did not improve in {without} validations; best "
                f"{self._sign * min(self._ranked()):.6g}."
            )
            self._request_stop()

    def _ranked(self) -> list[float]:
        return [math.inf if math.isnan(value) else self._sign * value for _, value in sorted(self._values.items())]

    def _validations_since_best(self) -> int:
        ranked = self._ranked()
        return len(ranked) - 1 - ranked.index(min(ranked))
