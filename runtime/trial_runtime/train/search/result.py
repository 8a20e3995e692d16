"""The result of a search: the best trial, a table of all as CSV, and one HTML page."""

from __future__ import annotations

import csv
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trial_runtime._cluster_info import newest_of_run
from trial_runtime._run_metrics import Report, best_report, points, read_reports
from trial_runtime.search.config import Search
from trial_runtime.search.state import SearchState
from trial_runtime.train.history.records import flattened
from trial_runtime.train.run.paths import relative_path
from trial_runtime.train.search.assignment import Assignment
from trial_runtime.train.search.directory import SearchDirectory
from trial_runtime.train.search.ledger import Ledger


@dataclass(frozen=True)
class TrialResult:
    """One trial with its validations.

    Attributes:
        best: its best validation by the searcher's metric; None without any.
        last: its last one.
        validations: all of them.
    """

    assignment: Assignment
    best: Report | None
    last: Report | None
    validations: list[Report] = field(default_factory=list)

    @classmethod
    def of(cls, assignment: Assignment, validations: list[Report], search: Search, metric: str) -> TrialResult:
        """Return the result of a trial with ``validations``; NaN is never the best."""
        best = best_report(validations, metric, search.smaller_is_better)
        return cls(assignment, best, validations[-1] if validations else None, validations)

    def points(self, metric: str) -> list[tuple[float, float]]:
        """Return the metric at each validation, by batches."""
        return points(self.validations, metric)

    def row(self, metric: str) -> dict[str, Any]:
        """Return the trial as one row: number, metric, batches trained, hyperparameters by dotted name."""
        return {
            "trial": self.assignment.trial,
            metric: None if self.best is None else self.best.number(metric),
            "batches": None if self.last is None else self.last.batches,
            "seed": self.assignment.seed,
            **flattened(self.assignment.hparams),
        }


def results(directory: SearchDirectory, search: Search, metric: str) -> list[TrialResult]:
    """Return the results of all trials, by number."""
    return [
        TrialResult.of(each, read_reports(directory.metrics_path(each.trial), "validation"), search, metric)
        for each in directory.assignments()
    ]


def best_of(found: list[TrialResult], search: Search, metric: str) -> TrialResult | None:
    """Return the trial with the best validation; of equally good ones the first; None without any."""
    sign = 1 if search.smaller_is_better else -1
    judged = [(sign * number, each) for each in found if each.best and (number := each.best.number(metric)) is not None]
    return min(judged, key=lambda pair: pair[0])[1] if judged else None


def differing(found: list[TrialResult]) -> list[str]:
    """Return the dotted names of the hyperparameters that are not the same in all trials."""
    rows = [flattened(each.assignment.hparams) for each in found]
    return [name for name in (rows[0] if rows else {}) if any(row.get(name) != rows[0][name] for row in rows)]


def print_result(directory: SearchDirectory, search: Search, metric: str, report: Callable[[str], None]) -> None:
    """Write ``table.csv`` and ``search.html``, and report the best trial with the command that trains it further."""
    from trial_runtime.train.search.page import render

    found = results(directory, search, metric)
    if not found:
        return
    write_csv(directory.path / "table.csv", [each.row(metric) for each in found])
    page = directory.path / "search.html"
    rungs = Ledger(directory.ledger, SearchState(search)).state.rung_reports()
    page.write_text(render(found, search, metric, rungs), encoding="utf-8")
    report(f"all trials: {relative_path(directory.path / 'table.csv')}, {relative_path(page)}")
    best = best_of(found, search, metric)
    if best is None or best.best is None:
        report(f"no trial reported {metric}; what they printed: {relative_path(directory.trials)}/*.log")
        return
    hparams = flattened(best.assignment.hparams)
    varied = differing(found) or list(hparams)
    run = directory.run_directory(best.assignment.trial)
    report(
        f"best: trial {best.assignment.trial}, {metric} {best.best.number(metric):.6g} after "
        f"{best.best.batches} batches: " + ", ".join(f"{name}={hparams[name]}" for name in varied)
    )
    checkpoint = newest_of_run(run)
    words = [word for name in varied for word in ("--hparam", f"{name}={hparams[name]}")]
    config = str(relative_path(directory.path / "config.yaml"))
    again = ["ds-train", config, "--config", "searcher.name=single", *words]
    report(f"train it from the start: {shlex.join(again)}")
    if checkpoint is None:
        return
    further = ["--latest-checkpoint", str(relative_path(Path(checkpoint)))]
    if search.length is not None and search.generation != "time" and best.assignment.length == search.target:
        further += ["--config", f"searcher.max_length.{search.unit}={2 * search.length}"]
    report(f"train it further: {shlex.join([*again, *further])}")


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows; a name that only some have is empty in the others."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
