"""Asynchronous successive halving over a time metric, as Determined 0.38 does it.

Trials run to an end that is their own. Each validation reports the metric and how far the trial is (``time_metric``);
one that reaches a rung and is not among the best so far is stopped.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

from trial_runtime.search.brackets import Bracket
from trial_runtime.search.events import Created, Event, ExitedEarly, Validated
from trial_runtime.search.schedule import WORST, Orders, Schedule


@dataclass
class Rung:
    """One rung: the reports as (metric, trial), best first."""

    length: int
    entries: list[tuple[float, int]] = field(default_factory=list)

    def insert(self, metric: float, trial: int) -> int:
        """Insert a report ahead of its equals and return its place."""
        place = bisect_left(self.entries, metric, key=lambda entry: entry[0])
        self.entries.insert(place, (metric, trial))
        return place


class AshaByTime(Schedule):
    """One bracket over ``max_time``."""

    def __init__(self, bracket: Bracket, divisor: float) -> None:
        self._bracket = bracket
        self._divisor = divisor
        self.rungs = [Rung(length) for length in bracket.lengths]
        self.rung_of: dict[int, int] = {}
        self._stopped: set[int] = set()
        self._invalid = 0

    def start(self, orders: Orders) -> None:
        """Create the first trials."""
        for _ in range(min(self._bracket.concurrency, self._bracket.max_trials)):
            self._create(orders)

    def handle(self, event: Event, orders: Orders) -> None:
        """Take one event.

        Raises:
            ValueError: a report without the time metric.
        """
        match event:
            case Validated(trial, _) if trial in self._stopped:
                pass  # it had not read yet that it is stopped
            case Validated(trial, metric, time):
                if time is None:
                    raise ValueError(f"trial {trial} was validated without the time metric")
                if self._is_stopped_by(trial, metric, time):
                    self._stopped.add(trial)
                    orders.close(trial)
                    self._refill(orders)
            case ExitedEarly(trial, "invalid_hp"):
                self._invalid += 1
                self._stopped.add(trial)
                for rung in self.rungs[: self.rung_of[trial] + 1]:
                    rung.entries = [entry for entry in rung.entries if entry[1] != trial]
                orders.close(trial)
                self._create(orders)
            case ExitedEarly(trial):
                self._stopped.add(trial)
                self.rungs[self.rung_of[trial]].insert(WORST, trial)
                self._refill(orders)
            case Created() | _:
                pass

    def progress(self, closed: int) -> float:
        """Return how much is done, 0 to 1."""
        reported, total = len(self.rungs[0].entries), self._bracket.max_trials
        most = reported / (1.2 * total)
        return max(most, (closed - self._invalid) / total) if reported == total else most

    def rung_reports(self) -> Iterator[tuple[int, int, float]]:
        """Yield each report as (trial, the rung's length, metric)."""
        for rung in self.rungs:
            for metric, trial in rung.entries:
                yield trial, rung.length, metric

    def _create(self, orders: Orders) -> None:
        self.rung_of[orders.create()] = 0

    def _refill(self, orders: Orders) -> None:
        if len(self.rung_of) - self._invalid < self._bracket.max_trials:
            self._create(orders)

    def _is_stopped_by(self, trial: int, metric: float, time: int) -> bool:
        for index in range(self.rung_of[trial], len(self.rungs)):
            rung = self.rungs[index]
            self.rung_of[trial] = index
            if time < rung.length:
                return False
            place = rung.insert(metric, trial)
            if place >= max(int(len(rung.entries) / self._divisor), 1):
                return True
        return True  # through the top rung
