"""The state of a search: the method's own, and which trials are open, closed and failed."""

from __future__ import annotations

import copy
import hashlib
import json
from typing import Any

from trial_runtime.search.config import Search
from trial_runtime.search.events import Action, Closed, Created, Event, ExitedEarly, Reason, Shutdown, Validated
from trial_runtime.search.schedule import WORST, Orders, Schedule, comparable


class SearchState:
    """All that the decisions of a search depend on; nothing of it comes from a clock or a disk.

    Args:
        search: the searcher's fields.
    """

    def __init__(self, search: Search) -> None:
        self._sign = 1 if search.smaller_is_better else -1
        self.schedule: Schedule = search.make_schedule()
        self.created = 0
        self.exits: dict[int, Reason] = {}
        self.closed: set[int] = set()
        self.is_over = False

    def start(self) -> list[Action]:
        """Return the first actions."""
        orders = Orders(self.created)
        self.schedule.start(orders)
        self.created = orders.created
        return orders.actions

    def handle(self, event: Event) -> list[Action]:
        """Take an event, changing this state, and return what is to be done.

        Events of trials that are unknown or closed, second early exits, and reports after an early exit change nothing.
        """
        if self.is_over or not 1 <= event.trial <= self.created or event.trial in self.closed:
            return []
        if event.trial in self.exits and not isinstance(event, Closed):
            return []
        orders = Orders(self.created)
        match event:
            case Validated(trial, metric, time):
                self.schedule.handle(Validated(trial, comparable(self._sign * metric), time), orders)
            case ExitedEarly(trial, reason):
                self.exits[trial] = reason
                self.schedule.handle(event, orders)
            case Closed(trial):
                self.closed.add(trial)
                self.schedule.handle(event, orders)
            case Created():
                self.schedule.handle(event, orders)
        self.created = orders.created
        if isinstance(event, Closed) and len(self.closed) == self.created:
            self.is_over = True
            orders.actions.append(Shutdown(self._status()))
        return orders.actions

    def progress(self) -> float:
        """Return how much of the search is done, 0 to 1."""
        return 1.0 if self.is_over else self.schedule.progress(len(self.closed))

    def rung_reports(self) -> dict[int, dict[int, float]]:
        """Return the metric of each trial at each rung that it reached, by the rung's length."""
        found: dict[int, dict[int, float]] = {}
        for trial, length, metric in sorted(self.schedule.rung_reports()):
            if metric < WORST:  # of a trial that failed, or reported NaN
                found.setdefault(trial, {})[length] = self._sign * metric
        return found

    def digest(self) -> str:
        """Return a hash of the whole state, the same in each process that took the same events."""
        return hashlib.sha256(json.dumps(_plain(self), sort_keys=True).encode()).hexdigest()

    def _status(self) -> Any:
        reasons = [self.exits.get(trial) for trial in range(1, self.created + 1)]
        if all(reason == "errored" for reason in reasons):
            return "failed"
        return "canceled" if all(reason == "canceled" for reason in reasons) else "completed"


def next_actions(state: SearchState, event: Event) -> tuple[SearchState, list[Action]]:
    """Return the state after ``event`` and what is to be done; ``state`` stays as it is."""
    after = copy.deepcopy(state)
    return after, after.handle(event)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "__dict__"):
        return {"": type(value).__name__, **{name: _plain(item) for name, item in vars(value).items()}}
    return value
