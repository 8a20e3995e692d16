"""What a person sees of a search: where each trial stands, the live table, Optuna's mirror."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from trial_runtime.search.config import Search
from trial_runtime.search.events import Closed, Created, ExitedEarly, Validated
from trial_runtime.search.state import SearchState
from trial_runtime.train.search import live_table
from trial_runtime.train.search.assignment import Assignment, Outcome
from trial_runtime.train.search.directory import SearchDirectory
from trial_runtime.train.search.trial_progress import Standing, Standings

SEARCH = Search("async_halving", 8, "batches", 4, num_rungs=2, divisor=2, generation="promotion")
SPACES = {
    "lr": {"type": "log", "minval": -3, "maxval": -1},
    "net": {"layers": {"type": "int", "minval": 1, "maxval": 3}, "act": {"type": "categorical", "vals": ["relu", [1]]}},
    "size": 4,
}


def assign(directory: SearchDirectory, trial: int, order: int, length: int, **hparams: Any) -> Assignment:
    assignment = Assignment(trial, 1, "", 3, hparams, order, {"batches": length})
    directory.assign(assignment)
    return assignment


def write_loss(directory: SearchDirectory, trial: int, *losses: tuple[int, float]) -> None:
    directory.run_directory(trial).mkdir(exist_ok=True)
    lines = [
        json.dumps({"group": "validation", "steps_completed": batches, "metrics": {"loss": loss, "batches": batches}})
        for batches, loss in losses
    ]
    directory.metrics_path(trial).write_text("\n".join(lines))


@pytest.fixture
def searched(tmp_path: Path) -> tuple[SearchDirectory, SearchState]:
    """A search in which trial 1 is at its end, 2 paused, 3 running, 4 waiting, and 5 failed."""
    directory = SearchDirectory(tmp_path / "line-1")
    directory.path.mkdir()
    state = SearchState(SEARCH)
    state.start()
    act = {"layers": 2, "act": [1]}
    for trial, length in ((1, 8), (2, 4), (3, 4), (4, 4), (5, 4)):
        assign(directory, trial, 1, length, lr=0.01 * trial, net=act, size=4)
    for trial, loss in ((1, 0.5), (2, 0.7)):
        directory.finish(trial, Outcome(1, 0))
        write_loss(directory, trial, (4, loss), *([(8, 0.25)] if trial == 1 else []))
    state.created = 5
    state.closed.add(1)
    state.exits[5] = "errored"
    return directory, state


def standings_of(searched: tuple[SearchDirectory, SearchState]) -> list[Standing]:
    directory, state = searched
    claim = directory.claim(3)
    assert claim is not None
    with claim:
        return Standings(directory, SEARCH, "loss").read(directory.assignments(), state)


def test_each_trial_is_as_its_files_and_the_ledger_record(searched: tuple[SearchDirectory, SearchState]) -> None:
    states = {standing.trial: standing.state for standing in standings_of(searched)}
    assert states == {1: "completed", 2: "paused", 3: "running", 4: "waiting", 5: "errored"}


def test_a_trial_closed_below_the_top_rung_was_stopped(searched: tuple[SearchDirectory, SearchState]) -> None:
    searched[1].closed.add(2)
    assert standings_of(searched)[1].state == "stopped"


def test_metrics_are_read_again_when_they_have_grown(searched: tuple[SearchDirectory, SearchState]) -> None:
    directory, state = searched
    standings = Standings(directory, SEARCH, "loss")
    assert standings.read(directory.assignments(), state)[1].result.points("loss") == [(4, 0.7)]
    write_loss(directory, 2, (4, 0.7), (8, 0.125))
    assert standings.read(directory.assignments(), state)[1].result.points("loss") == [(4, 0.7), (8, 0.125)]


def shown(standings: list[Standing], rows: int) -> list[str]:
    console = Console(width=100, record=True, file=StringIO())
    console.print(live_table.render(standings, SEARCH, "loss", 0.25, rows))
    return console.export_text().splitlines()


def test_table_has_running_trials_first_then_the_best(searched: tuple[SearchDirectory, SearchState]) -> None:
    lines = shown(standings_of(searched), 10)
    assert lines[0].split() == ["trial", "state", "batches", "loss", "best", "lr"]
    assert [line.split()[:2] for line in lines[1:4]] == [["3", "running"], ["1", "completed"], ["2", "paused"]]
    assert lines[2].split() == ["1", "completed", "8/8", "0.25", "0.25", "0.01"]
    assert lines[-1] == "25% done; 5 of 4 trials: 1 running, 1 paused, 1 waiting, 1 completed, 1 errored"


def test_table_reports_how_many_trials_it_does_not_show(searched: tuple[SearchDirectory, SearchState]) -> None:
    lines = shown(standings_of(searched), 2)
    assert len(lines) == 4 and lines[-1].endswith("; 3 more not shown")


def test_reports_at_rungs_leave_failed_trials_out() -> None:
    state = SearchState(Search("async_halving", 8, "batches", 2, num_rungs=2, divisor=2, smaller_is_better=False))
    state.start()
    for event in (Created(1), Created(2), Validated(1, 0.5), ExitedEarly(2, "errored"), Validated(1, 0.75), Closed(1)):
        state.handle(event)
    assert state.rung_reports() == {1: {4: 0.5, 8: 0.75}}


def study_at(path: Path) -> Any:
    import optuna
    from optuna.storages.journal import JournalFileBackend

    return optuna.load_study(study_name="line-1", storage=optuna.storages.JournalStorage(JournalFileBackend(str(path))))


def test_mirror_is_the_search_as_an_optuna_study(searched: tuple[SearchDirectory, SearchState]) -> None:
    pytest.importorskip("optuna", reason="needs the extra search")
    from trial_runtime.train.search.mirror import Mirror

    path = searched[0].path / "optuna.log"
    path.write_text('{"torn')  # of a process that was killed
    standings = standings_of(searched)
    mirror = Mirror(path, "line-1", SEARCH, "loss", SPACES)
    mirror.update(standings)
    mirror.update(standings)
    trials = study_at(path).trials
    assert [trial.state.name for trial in trials] == ["COMPLETE", "RUNNING", "RUNNING", "RUNNING", "FAIL"]
    assert trials[0].params == {"lr": 0.01, "net.layers": 2, "net.act": "[1]"} and trials[0].value == 0.25
    assert trials[0].intermediate_values == {4: 0.5, 8: 0.25}
    assert trials[1].user_attrs == {"trial": 2, "seed": 3, "state": "paused"}
    searched[1].closed.add(2)
    mirror.update(standings_of(searched))
    assert study_at(path).trials[1].state.name == "PRUNED"


def test_a_value_just_outside_of_its_range_is_kept(
    tmp_path: Path, searched: tuple[SearchDirectory, SearchState]
) -> None:
    pytest.importorskip("optuna", reason="needs the extra search")
    from trial_runtime.train.search.mirror import Mirror

    directory, state = searched
    value = 0.1 + 2**-50
    standings = Standings(directory, SEARCH, "loss").read(
        [assign(directory, 1, 1, 8, lr=value, net={"layers": 1, "act": "relu"})], state
    )
    Mirror(tmp_path / "o.log", "line-1", SEARCH, "loss", SPACES).update(standings)
    assert study_at(tmp_path / "o.log").trials[0].params["lr"] == value
