"""Reported metrics, as Determined's client gives them."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trial_runtime._run_metrics import read_reports


@dataclasses.dataclass
class TrialMetrics:
    """One report of metrics.

    Attributes:
        trial_id: the trial.
        trial_run_id: always 1.
        steps_completed: batches trained.
        end_time: None, because reports have no time here.
        metrics: by name.
        group: ``"training"``, ``"validation"``, or another one that the trial chose.
        batch_metrics: for training metrics, those of each batch since the report before.
    """

    trial_id: int
    trial_run_id: int
    steps_completed: int
    end_time: datetime.datetime | None
    metrics: dict[str, Any]
    group: str
    batch_metrics: list[dict[str, Any]] | None = None

    @property
    def total_batches(self) -> int:
        """Return ``steps_completed``."""
        return self.steps_completed


class TrainingMetrics(TrialMetrics):
    """One report of training metrics."""

    def __init__(self, total_batches: int | None = None, **kwargs: Any) -> None:
        super().__init__(**_with_steps(total_batches, kwargs), group="training")


class ValidationMetrics(TrialMetrics):
    """One report of validation metrics."""

    def __init__(self, total_batches: int | None = None, **kwargs: Any) -> None:
        super().__init__(**_with_steps(total_batches, kwargs), group="validation")


def metrics_of(path: Path, trial_id: int, group: str) -> Iterator[TrialMetrics]:
    """Yield the reports of a group in a run's ``metrics.jsonl``, in the order of writing."""
    for report in read_reports(path, group):
        facts: dict[str, Any] = {
            "trial_id": trial_id,
            "trial_run_id": 1,
            "steps_completed": report.batches,
            "end_time": None,
            "metrics": report.metrics,
            "batch_metrics": report.batch_metrics,
        }
        if group == "training":
            yield TrainingMetrics(**facts)
        elif group == "validation":
            yield ValidationMetrics(**facts)
        else:
            yield TrialMetrics(**facts, group=group)


def _with_steps(total_batches: int | None, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with ``steps_completed``, which was ``total_batches`` once."""
    facts.pop("group", None)
    return facts if total_batches is None else {"steps_completed": total_batches, **facts}
