"""Leading of a search over files: events from what trials left, assignments from what was decided, after any kill."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from trial_runtime._cluster_info import CLUSTER_INFO_FILE, ClusterInfo, FitDefaults, Length, RunInfo, TrialInfo
from trial_runtime.search.config import Search
from trial_runtime.search.draws import TrialDraw, draw_trials
from trial_runtime.search.events import Close, Create, Train
from trial_runtime.search.state import SearchState
from trial_runtime.train.search.assignment import Assignment, Outcome
from trial_runtime.train.search.directory import SearchDirectory
from trial_runtime.train.search.leader import Leader
from trial_runtime.train.search.ledger import Ledger, LedgerError

SPACE = {"lr": {"type": "double", "minval": 0.0, "maxval": 1.0}}
ASHA = Search("async_halving", 9, "batches", 6, 3, divisor=3, num_rungs=3, generation="promotion")


def test_search_runs_to_its_end(tmp_path: Path) -> None:
    leader = run(tmp_path, ASHA)
    assert leader.status == "completed"
    lengths = [(assignment.length or {})["batches"] for assignment in SearchDirectory(tmp_path).assignments()]
    assert sorted(lengths) == [1, 1, 1, 1, 3, 3]
    assert leader.ledger.state.closed == {1, 2, 3, 4, 5, 6}


@pytest.mark.parametrize("name", ["promotion", "stop_once", "random", "grid", "time"])
def test_leader_that_starts_again_after_each_step_decides_the_same(tmp_path: Path, name: Any) -> None:
    search = {
        "random": Search("random", 5, "batches", 4, 2),
        "grid": Search("grid", 5, "batches", 4, 2),
        "time": replace(ASHA, generation="time"),
    }.get(name, replace(ASHA, generation=name))
    for folder, restarts in (("once", False), ("again", True)):
        (tmp_path / folder).mkdir()
        run(tmp_path / folder, search, restarts=restarts)
    assert (tmp_path / "once/search.jsonl").read_text() == (tmp_path / "again/search.jsonl").read_text()


@pytest.mark.parametrize("seed", range(3))
def test_kill_in_the_middle_of_any_write_changes_nothing(tmp_path: Path, seed: int) -> None:
    order = random.Random(seed)
    (tmp_path / "whole").mkdir()
    run(tmp_path / "whole", ASHA)
    text = (tmp_path / "whole/search.jsonl").read_bytes()
    for cut in sorted(order.sample(range(len(text)), 8)):
        folder = tmp_path / str(cut)
        folder.mkdir()
        (folder / "search.jsonl").write_bytes(text[:cut])  # its trials' files are gone too
        run(folder, ASHA)
        assert (folder / "search.jsonl").read_bytes() == text


def test_changed_searcher_is_refused_with_the_line(tmp_path: Path) -> None:
    run(tmp_path, ASHA)
    with pytest.raises(LedgerError, match=r"search\.jsonl, line 1: this config decides"):
        Ledger(tmp_path / "search.jsonl", SearchState(replace(ASHA, max_concurrent_trials=2)))


def test_line_that_is_no_entry_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "search.jsonl"
    Ledger(path, SearchState(ASHA))
    path.write_text(path.read_text() + '{"event": {"type": "Closed", "trial": 1}}\n')
    with pytest.raises(LedgerError, match="line 2: is no entry"):
        Ledger(path, SearchState(ASHA))


def test_trial_that_fails_is_errored_and_the_others_continue(tmp_path: Path) -> None:
    said: list[str] = []
    leader = run(tmp_path, ASHA, code=lambda trial: 1 if trial == 2 else 0, said=said)
    assert leader.status == "completed" and leader.ledger.state.exits == {2: "errored"}
    assert [line for line in said if "trial 2: errored" in line and "0002.log" in line]


def test_search_whose_trials_all_fail_has_failed(tmp_path: Path) -> None:
    assert run(tmp_path, Search("random", 5, "batches", 3), code=lambda _: 1).status == "failed"


def test_invalid_hyperparameters_are_replaced(tmp_path: Path) -> None:
    leader = run(tmp_path, ASHA, reason=lambda trial: "invalid_hp" if trial == 1 else None)
    assert leader.ledger.state.exits == {1: "invalid_hp"} and leader.ledger.state.created == 7
    assert len(leader.ledger.state.schedule.rungs[0].entries) == 6  # type: ignore[attr-defined]


def test_trial_that_ends_before_its_length_has_requested_a_stop(tmp_path: Path) -> None:
    leader = run(tmp_path, ASHA, trained=lambda trial, length: 0 if trial == 3 else length)
    assert leader.ledger.state.exits == {3: "stop_requested"}


def test_missing_metric_is_an_error_that_names_it(tmp_path: Path) -> None:
    said: list[str] = []
    leader = run(tmp_path, Search("random", 5, "batches", 1), metric="accuracy", said=said)
    assert leader.status == "failed"
    assert any("reported no number 'loss'" in line for line in said)


def test_metric_that_is_nan_is_the_worst_and_no_failure(tmp_path: Path) -> None:
    leader = run(tmp_path, ASHA, value=lambda trial: "nan" if trial == 1 else trial / 10)
    assert leader.ledger.state.exits == {}
    assert leader.ledger.state.schedule.rungs[0].entries[-1].trial == 1  # type: ignore[attr-defined]


def test_trial_over_time_is_stopped_while_it_runs(tmp_path: Path) -> None:
    leader = run(tmp_path, replace(ASHA, generation="time"))
    stopped = [a.trial for a in SearchDirectory(tmp_path).assignments() if a.is_stopped]
    assert stopped and leader.status == "completed"
    assert set(stopped) <= {action.trial for action in leader.ledger.actions if isinstance(action, Close)}


def test_trials_have_the_masters_draws(tmp_path: Path) -> None:
    run(tmp_path, ASHA)
    drawn = draw_trials(7, SPACE)
    for assignment, trial in zip(SearchDirectory(tmp_path).assignments(), drawn, strict=False):
        assert (assignment.request_id, assignment.seed, assignment.hparams) == (
            trial.request_id,
            trial.seed,
            trial.hparams,
        )


def run(
    path: Path,
    search: Search,
    restarts: bool = False,
    code: Callable[[int], int] = lambda _: 0,
    reason: Callable[[int], str | None] = lambda _: None,
    trained: Callable[[int, int], int] = lambda _, length: length,
    metric: str = "loss",
    value: Callable[[int], float | str] = lambda trial: (trial * 37 % 11) / 10,
    said: list[str] | None = None,
) -> Leader:
    """Lead a search whose trials are files: each open assignment, the lowest first, ends at once."""
    directory = SearchDirectory(path)
    draws = draw_trials(7, SPACE)
    known: list[TrialDraw] = []

    def draw(trial: int) -> TrialDraw:
        while len(known) < trial:
            known.append(next(draws))
        return known[trial - 1]

    def lead() -> Leader:
        return Leader(directory, search, "loss", 1, draw, lines.append)

    lines: list[str] = [] if said is None else said
    leader = lead()
    for _ in range(200):
        waiting = [each for each in leader.step() if directory.is_open(each)]
        if leader.status is not None:
            return leader
        if waiting:
            finish(directory, waiting[0], search, code, reason, trained, metric, value)
        if restarts:
            leader = lead()
    raise AssertionError("the search does not end")


def finish(
    directory: SearchDirectory,
    assignment: Assignment,
    search: Search,
    code: Callable[[int], int],
    reason: Callable[[int], str | None],
    trained: Callable[[int, int], int],
    metric: str,
    value: Callable[[int], float | str],
) -> None:
    """Leave what a trial's ds-train leaves: over time one validation a call until it is stopped, else all at once."""
    folder = directory.run_directory(assignment.trial)
    folder.mkdir(parents=True, exist_ok=True)
    validations = folder / "metrics.jsonl"
    before = len(validations.read_text().splitlines()) if validations.exists() else 0
    target = (assignment.length or {"batches": 5})["batches"]
    batches = before + 1 if search.generation == "time" else trained(assignment.trial, target)
    report = {
        "group": "validation",
        "steps_completed": batches,
        "metrics": {metric: value(assignment.trial), "batches": batches},
    }
    with validations.open("a") as file:
        file.write(json.dumps(report) + "\n")
    info = ClusterInfo(
        TrialInfo(assignment.trial, 1, assignment.seed, assignment.hparams, {}),
        RunInfo(str(folder), str(folder), fit=FitDefaults(max_length=Length(target, "batches"))),
        [0],
    )
    (folder / CLUSTER_INFO_FILE).write_text(info.to_json())
    (folder / "run.json").write_text(json.dumps({"reason": reason(assignment.trial)}))
    if search.generation != "time" or assignment.is_stopped or batches >= target:
        directory.finish(assignment.trial, Outcome(assignment.order, code(assignment.trial)))


def test_orders_count_up_even_for_two_equal_lengths(tmp_path: Path) -> None:
    search = Search("adaptive_asha", 2, "batches", 4, 4, divisor=4, bracket_rungs=(3,), generation="promotion")
    assert search.brackets()[0].lengths == (1, 1, 2)
    leader = run(tmp_path, search)
    sent: dict[int, int] = {}
    for action in leader.ledger.actions:
        if isinstance(action, Train):
            sent[action.trial] = sent.get(action.trial, 0) + 1
    assert {each.trial: each.order for each in SearchDirectory(tmp_path).assignments()} == sent
    assert sum(isinstance(action, Create) for action in leader.ledger.actions) == 4
