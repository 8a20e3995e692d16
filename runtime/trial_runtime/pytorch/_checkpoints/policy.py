"""The policy by which a run saves after a validation."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from trial_runtime.errors import MetricNotReportedError
from trial_runtime.train.config.errors import did_you_mean


@dataclasses.dataclass
class CheckpointPolicy:
    """Policy of saving after validations: ``all``, ``best`` by a metric, or ``none``."""

    name: str
    metric: str | None = None
    smaller_is_better: bool = True
    best: float | None = None
    latest: float | None = None

    def wants(self, metrics: dict[str, Any]) -> bool:
        """Return whether to save after a validation with these metrics.

        Raises:
            MetricNotReportedError: when the metric to compare is missing or is no number.
        """
        value = np.asarray(metrics.get(str(self.metric)))
        number = value.size == 1 and value.dtype.kind in "fiub"
        self.latest = float(value.reshape(())) if number else None
        if self.name != "best":
            return self.name == "all"
        if self.metric not in metrics:
            raise MetricNotReportedError(
                f"checkpoint_policy 'best' compares the metric {self.metric!r} (searcher.metric), but the trial's "
                f"validation metrics are {sorted(metrics)}{did_you_mean(str(self.metric), metrics)}."
            )
        now = self.latest
        if now is None:
            raise MetricNotReportedError(
                f"The metric {self.metric!r} (searcher.metric) is not a number: {metrics[self.metric]!r}."
            )
        better = self.best is None or (now < self.best if self.smaller_is_better else now > self.best)
        if better:
            self.best = now
        return better
