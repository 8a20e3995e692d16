"""The progress of each trial of a search: for the live table and for Optuna's dashboard."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from trial_runtime._run_metrics import Report, read_reports
from trial_runtime.search.config import Search
from trial_runtime.search.state import SearchState
from trial_runtime.train.search.assignment import Assignment
from trial_runtime.train.search.directory import SearchDirectory
from trial_runtime.train.search.result import TrialResult

State = Literal["waiting", "running", "paused", "completed", "stopped", "invalid_hp", "canceled", "errored"]
"""Waiting for a place; running on some machine; paused at its rung; trained to its end; closed below it; or failed."""


@dataclass(frozen=True)
class Standing:
    """A trial with its state and its reports so far."""

    result: TrialResult
    state: State

    @property
    def trial(self) -> int:
        """Return the trial's number."""
        return self.result.assignment.trial


class Standings:
    """Reads where the trials stand; a file of metrics is read again only when it has grown.

    Args:
        directory: the search.
        search: its method.
        metric: the searcher's metric.
    """

    def __init__(self, directory: SearchDirectory, search: Search, metric: str) -> None:
        self._directory, self._search, self._metric = directory, search, metric
        self._read: dict[int, tuple[int, list[Report]]] = {}

    def read(self, assignments: Iterable[Assignment], state: SearchState) -> list[Standing]:
        """Return where the trials stand.

        Args:
            assignments: of all trials.
            state: that the ledger leads to.
        """
        standings = []
        for assignment in assignments:
            result = TrialResult.of(assignment, self._validations(assignment.trial), self._search, self._metric)
            standings.append(Standing(result, self._state(result, state)))
        return standings

    def _validations(self, trial: int) -> list[Report]:
        path = self._directory.metrics_path(trial)
        size = path.stat().st_size if path.is_file() else 0
        if trial not in self._read or self._read[trial][0] != size:
            self._read[trial] = size, read_reports(path, "validation")
        return self._read[trial][1]

    def _state(self, result: TrialResult, state: SearchState) -> State:
        assignment = result.assignment
        trial = assignment.trial
        if (reason := state.exits.get(trial)) is not None and reason != "stop_requested":
            return reason
        if trial in state.closed:
            return "completed" if self._is_through(result) else "stopped"
        if self._directory.is_claimed(trial):
            return "running"
        is_open = assignment.order == 0 or self._directory.is_open(assignment)
        return "waiting" if is_open else "paused"

    def _is_through(self, result: TrialResult) -> bool:
        length, unit = self._search.length, self._search.unit
        if length is None:
            return True
        if self._search.generation == "time":
            return result.last is not None and (result.last.number(unit) or 0) >= length
        return result.assignment.length == self._search.target
