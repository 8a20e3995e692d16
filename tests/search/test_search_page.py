"""The page of a search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trial_runtime._run_metrics import Report
from trial_runtime.search.config import Search
from trial_runtime.train.search.assignment import Assignment
from trial_runtime.train.search.page import render
from trial_runtime.train.search.result import TrialResult, write_csv


def trial(number: int, values: list[float], **hparams: Any) -> TrialResult:
    reports = [Report("validation", 10 * index, {"loss": value}) for index, value in enumerate(values, 1)]
    best = min(reports, key=lambda report: report.number("loss") or 0.0) if reports else None
    return TrialResult(Assignment(number, 1, "", 3, hparams), best, reports[-1] if reports else None, reports)


FOUND = [
    trial(1, [0.5, 0.4], lr=0.001, opt="sgd", batch=8),
    trial(2, [0.9], lr=0.5, opt="<adam>", batch=8),
    trial(3, [], lr=0.01, opt="sgd", batch=8),
]
RUNGS = {1: {10: 0.5, 20: 0.4}, 2: {10: 0.9}}
SEARCH = Search("adaptive_asha", 20, "batches", 3, generation="promotion")


def test_page_draws_each_trial_and_marks_the_best() -> None:
    page = render(FOUND, SEARCH, "loss", RUNGS)
    assert page.count('<polyline class="best"') == 3 and page.count('<polyline class="other"') == 5
    assert "Best: trial 1, 0.4 after 20 batches" in page
    assert "&lt;adam&gt;" in page and "<adam>" not in page
    assert ">batch<" not in page  # the same in all trials


def test_rungs_have_one_scale_and_a_dot_for_each_report() -> None:
    page = render(FOUND, SEARCH, "loss", RUNGS)
    plot = page[page.index("at each rung") : page.index("<h2>Hyperparameters")]
    assert plot.count(">10 batches<") == plot.count(">20 batches<") == 1
    assert plot.count("<circle") == 3
    assert plot.count(">0.9</text>") == plot.count(">0.4</text>") == 2  # the ends of both axes


def test_best_stands_first_and_trials_without_a_report_last() -> None:
    page = render(FOUND, SEARCH, "loss", RUNGS)
    rows = page[page.rindex("<table>") :].split("<tr>")[2:]
    assert [row.split("<td>")[1].split("<")[0] for row in rows] == ["1", "2", "3"]


def test_one_trial_is_drawn_too() -> None:
    assert "Best: trial 1" in render(FOUND[:1], SEARCH, "loss", {})


def test_table_has_a_column_for_each_name(tmp_path: Path) -> None:
    write_csv(tmp_path / "t.csv", [{"a": 1}, {"a": 2, "b": 3}])
    assert (tmp_path / "t.csv").read_text().splitlines() == ["a,b", "1,", "2,3"]
