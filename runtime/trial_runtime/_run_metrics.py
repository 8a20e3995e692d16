"""Reading of a run's ``metrics.jsonl``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NOT_FINITE = ("nan", "inf", "-inf")  # as the file has them
_MAX_LINE = 1 << 28  # characters; what is longer is no report


@dataclass(frozen=True)
class Report:
    """One report of metrics.

    Attributes:
        group: ``training`` or ``validation``, or as a Core API program names it.
        batches: trained until then.
        metrics: by name.
        batch_metrics: for training, those of each batch since the report before; None where they were not reported.
    """

    group: str
    batches: int
    metrics: dict[str, Any]
    batch_metrics: list[dict[str, Any]] | None = None

    def number(self, name: str) -> float | None:
        """Return a metric as a number, NaN and infinities included; None where it is none."""
        value = self.metrics.get(name)
        if isinstance(value, bool) or not (isinstance(value, int | float) or value in _NOT_FINITE):
            return None
        try:
            return float(value)
        except OverflowError:  # an integer of hundreds of digits
            return math.inf if value > 0 else -math.inf


def read_reports(path: Path, group: str | None = None) -> list[Report]:
    """Return the reports in the file ``path``, or those of one group, in the order of writing. None without a file.

    A run that was resumed from an earlier checkpoint reports some batches a second time.
    """
    if not path.is_file():  # a pipe would never end
        return []
    found = []
    with path.open(encoding="utf-8", errors="replace") as lines:
        while line := lines.readline(_MAX_LINE):
            try:
                report = json.loads(line)
                group_of, batches = str(report["group"]), int(report["steps_completed"])
                metrics = dict(report["metrics"])
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError):  # a kill left half a line
                continue
            if 0 <= batches < 1 << 63 and group in (None, group_of):
                found.append(Report(group_of, batches, metrics, report.get("batch_metrics")))
    return found


def validation_values(path: Path, metric: str | None) -> dict[int, float]:
    """Return one validation metric by batches trained; of several reports at the same batch, the last one counts."""
    if metric is None:
        return {}
    numbers = {report.batches: report.number(metric) for report in read_reports(path, "validation")}
    return {batches: value for batches, value in numbers.items() if value is not None and not math.isnan(value)}


def best_report(reports: Iterable[Report], metric: str, smaller_is_better: bool) -> Report | None:
    """Return the first report with the best value of a metric; NaN is never the best. None without any value."""
    sign = 1 if smaller_is_better else -1
    judged = [
        (sign * value, report)
        for report in reports
        if (value := report.number(metric)) is not None and not math.isnan(value)
    ]
    return min(judged, key=lambda pair: pair[0])[1] if judged else None


def points(reports: Iterable[Report], metric: str) -> list[tuple[float, float]]:
    """Return a metric by batches trained, in their order; of several reports at the same batch, the last one counts."""
    values = {report.batches: report.number(metric) for report in reports}
    return [(batches, value) for batches, value in sorted(values.items()) if value is not None]


def clock(seconds: float) -> str:
    """Format seconds as ``h:mm:ss``."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
