"""Reading of a run's ``metrics.jsonl``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_reports(path: Path) -> Iterator[dict[str, Any]]:
    """Yield each report in the order of writing: ``group``, ``steps_completed``, ``metrics``. None without a file."""
    if not path.is_file():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            report = json.loads(line)
        except ValueError:  # the last line of a run that was killed
            continue
        yield report


def validation_values(path: Path, metric: str | None) -> dict[int, float]:
    """Return one validation metric by batches trained; of several reports at the same batch, the last one counts."""
    found: dict[int, float] = {}
    for report in read_reports(path):
        value = report["metrics"].get(metric)
        if report["group"] == "validation" and isinstance(value, int | float) and not math.isnan(value):
            found[int(report["steps_completed"])] = float(value)
    return found
