"""The one process of a search that decides: what trials did becomes events, what follows becomes assignments."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from trial_runtime._cluster_info import CLUSTER_INFO_FILE, ClusterInfo
from trial_runtime._run_metrics import Report, read_reports
from trial_runtime.search.config import Search
from trial_runtime.search.draws import TrialDraw
from trial_runtime.search.events import (
    Action,
    Close,
    Closed,
    Create,
    Created,
    Event,
    ExitedEarly,
    Reason,
    Shutdown,
    Train,
    Validated,
)
from trial_runtime.search.state import SearchState
from trial_runtime.train.search.assignment import Assignment, Outcome
from trial_runtime.train.search.directory import SearchDirectory
from trial_runtime.train.search.ledger import Ledger


class Leader:
    """Leads a search.

    Args:
        directory: the search.
        search: its method.
        metric: the searcher's metric.
        experiment: the number of the search's directory.
        draw: returns the draws of a trial, by its number.
        report: receives a line for the user.

    Raises:
        LedgerError: the ledger does not fit the search.
    """

    def __init__(
        self,
        directory: SearchDirectory,
        search: Search,
        metric: str,
        experiment: int,
        draw: Callable[[int], TrialDraw],
        report: Callable[[str], None],
    ) -> None:
        self._directory = directory
        self._search = search
        self._metric = metric
        self._experiment = experiment
        self._draw = draw
        self._report = report
        self._assignments: dict[int, Assignment] = {}
        self._orders: Counter[int] = Counter()
        self._ended_orders: Counter[int] = Counter()
        self._last_times: dict[int, int] = {}
        self._created: set[int] = set()
        self._closing: set[int] = set()
        self.status: str | None = None
        self.ledger = Ledger(directory.ledger, SearchState(search))
        for event in self.ledger.events:
            self._note(event)
        for action in self.ledger.actions:
            self._carry_out(action)

    @property
    def assignments(self) -> list[Assignment]:
        """Return the assignments of all trials, by number."""
        return [assignment for _, assignment in sorted(self._assignments.items())]

    def step(self) -> list[Assignment]:
        """Take what happened since the last step, and return the assignments of the trials that are not closed."""
        while events := list(self._events()):
            for event in events:
                actions = self.ledger.handle(event)
                self._note(event)
                self._tell(event, actions)
                for action in actions:
                    self._carry_out(action)
        closed = self.ledger.state.closed
        return [assignment for assignment in self.assignments if assignment.trial not in closed]

    def _note(self, event: Event) -> None:
        match event:
            case Created(trial):
                self._created.add(trial)
                self._orders[trial] = 1 if self._trains_to_its_own_end else self._orders[trial]
            case Validated(trial, _, time):
                self._ended_orders[trial] += 1
                self._last_times[trial] = time or 0
            case ExitedEarly(trial):
                self._ended_orders[trial] += 1

    def _tell(self, event: Event, actions: Sequence[Action]) -> None:
        match event:
            case Validated(trial, metric, time):
                at = "" if time is None else f" at {time} {self._search.unit}"
                self._report(f"trial {trial}: {self._metric} {metric:.6g}{at}{_consequence(trial, actions)}")
            case ExitedEarly(trial, reason):
                log = self._directory.console_path(trial)
                self._report(f"trial {trial}: {reason.replace('_', ' ')}{_consequence(trial, actions)}; log: {log}")

    def _carry_out(self, action: Action) -> None:
        """Do what was decided; also a second time, after a kill."""
        match action:
            case Create(trial):
                self._assignments[trial] = self._directory.assignment(trial) or self._new_assignment(trial)
            case Train(trial, length):
                self._orders[trial] += 1
                if self._assignments[trial].order < self._orders[trial]:
                    self._assign(trial, order=self._orders[trial], length={self._search.unit: length})
            case Close(trial):
                self._closing.add(trial)
            case Shutdown(status):
                self.status = status

    def _new_assignment(self, trial: int) -> Assignment:
        drawn = self._draw(trial)
        made = Assignment(trial, self._experiment, drawn.request_id, drawn.seed, drawn.hparams)
        self._directory.assign(made)
        return made

    def _assign(self, trial: int, **changes: Any) -> None:
        self._assignments[trial] = dataclasses.replace(self._assignments[trial], **changes)
        self._directory.assign(self._assignments[trial])

    def _events(self) -> Iterator[Event]:
        """Return what the files hold and the ledger does not, by number of the trial."""
        for trial, assignment in sorted(self._assignments.items()):
            if trial not in self._created:
                yield Created(trial)
            elif trial not in self.ledger.state.closed:
                yield from self._events_of(assignment)

    def _events_of(self, assignment: Assignment) -> Iterator[Event]:
        trial = assignment.trial
        if trial in self.ledger.state.exits:
            yield Closed(trial)
        elif self._trains_to_its_own_end:
            yield from self._events_of_running(assignment)
        elif trial in self._closing:
            yield Closed(trial)
        elif assignment.order > self._ended_orders[trial] and (outcome := self._directory.outcome(assignment)):
            yield self._end_of(trial, outcome)

    def _events_of_running(self, assignment: Assignment) -> Iterator[Event]:
        trial = assignment.trial
        if assignment.order < self._orders[trial]:
            self._assign(trial, order=self._orders[trial], length=self._search.target)
            return
        outcome = self._directory.outcome(assignment)  # before its metrics, which are complete then
        if self._search.generation == "time" and trial not in self._closing:
            yield from self._new_validations(trial)
        if outcome is not None:
            failed = outcome.code != 0 and trial not in self._closing
            reason: Reason | None = "errored" if failed else _end_reason(self._directory.run_directory(trial))
            yield Closed(trial) if reason is None else ExitedEarly(trial, reason)
        elif trial in self._closing and not assignment.is_stopped:
            self._assign(trial, is_stopped=True)

    @property
    def _trains_to_its_own_end(self) -> bool:
        return self._search.generation == "time" or self._search.length is None

    def _end_of(self, trial: int, outcome: Outcome) -> Event:
        """Return the event that the end of a trial's process is, where it was sent to a length."""
        folder = self._directory.run_directory(trial)
        if outcome.code:
            return ExitedEarly(trial, "errored")
        if _end_reason(folder) == "invalid_hp":
            return ExitedEarly(trial, "invalid_hp")
        reported = read_reports(folder / "metrics.jsonl", "validation")
        if not reported or not self._has_reached_its_length(trial, reported[-1]):
            return ExitedEarly(trial, "stop_requested")
        metric = reported[-1].number(self._metric)
        if metric is None:
            self._report(f"trial {trial}: its last validation reported no number {self._metric!r} (searcher.metric)")
            return ExitedEarly(trial, "errored")
        return Validated(trial, metric)

    def _has_reached_its_length(self, trial: int, last: Report) -> bool:
        path = self._directory.run_directory(trial) / CLUSTER_INFO_FILE
        length = ClusterInfo.from_json(path.read_text(encoding="utf-8")).run.fit.max_length
        if length is None:
            return True
        done = last.number(length.unit)
        if done is None:  # a Core API program's, which reports no counts beside the one that it trains by
            done = last.batches if length.unit == "batches" else length.value
        return done >= length.value

    def _new_validations(self, trial: int) -> Iterator[Event]:
        seen = self._last_times.get(trial, -1)
        for validation in read_reports(self._directory.metrics_path(trial), "validation"):
            time, metric = validation.number(self._search.unit), validation.number(self._metric)
            if time is not None and metric is not None and time > seen:
                seen = int(time)
                yield Validated(trial, metric, seen)


def _end_reason(run_directory: Path) -> Literal["invalid_hp"] | None:
    try:
        record = json.loads((run_directory / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return "invalid_hp" if isinstance(record, dict) and record.get("reason") == "invalid_hp" else None


def _consequence(trial: int, actions: Sequence[Action]) -> str:
    """Return what an event leads to, for the user."""
    parts = []
    for action in actions:
        match action:
            case Train(other, length):
                parts.append(f"trial {other} trains to {length}" if other != trial else f"trains on to {length}")
            case Close(other):
                parts.append(f"trial {other} is closed" if other != trial else "closed")
    return f"; {', '.join(parts)}" if parts else ""
