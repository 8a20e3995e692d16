"""Asynchronous successive halving over lengths, as Determined did it up to 0.37.

Each trial trains to the length of its rung, then reports. Under *promotion* it pauses there and continues whenever it
is among the best one in ``divisor`` of its rung, which may be much later. With ``stop_once`` that is decided once, by
the reports so far.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from trial_runtime.search.brackets import Bracket
from trial_runtime.search.events import Created, Event, ExitedEarly, Validated
from trial_runtime.search.schedule import WORST, Orders, Schedule


@dataclass
class Entry:
    """A trial's report at a rung."""

    metric: float
    trial: int
    promoted: bool = False


@dataclass
class Rung:
    """One rung: the reports, best first, and how many trials are on their way to it."""

    length: int
    entries: list[Entry] = field(default_factory=list)
    open: int = 0


class Asha(Schedule):
    """One bracket of ``async_halving`` or ``adaptive_asha``.

    Args:
        bracket: lengths, trials and concurrency.
        divisor: about one trial in this many continues from a rung.
        stop_once: decide once, when a trial reports.
    """

    def __init__(self, bracket: Bracket, divisor: float, stop_once: bool = False) -> None:
        self._bracket = bracket
        self._divisor = divisor
        self._stop_once = stop_once
        self.rungs = [Rung(length) for length in bracket.lengths]
        self.rung_of: dict[int, int] = {}
        self._exited: set[int] = set()
        self._closed: set[int] = set()
        self._invalid = 0

    def start(self, orders: Orders) -> None:
        """Create the first trials."""
        for _ in range(min(self._bracket.concurrency, self._bracket.max_trials)):
            self._create(orders)

    def handle(self, event: Event, orders: Orders) -> None:
        """Take one event."""
        match event:
            case Created():
                self.rungs[0].open += 1
            case Validated(trial, metric):
                self._report(trial, metric, orders)
            case ExitedEarly(trial, "invalid_hp"):
                self._replace(trial, orders)
            case ExitedEarly(trial):
                self._exited.add(trial)
                self._closed.add(trial)
                self._report(trial, WORST, orders)

    def progress(self, closed: int) -> float:
        """Return how much is done, 0 to 1."""
        reported, total = len(self.rungs[0].entries), self._bracket.max_trials
        most = reported / (1.2 * total)
        return max(most, (closed - self._invalid) / total) if reported == total else most

    def rung_reports(self) -> Iterator[tuple[int, int, float]]:
        """Yield each report as (trial, the rung's length, metric)."""
        for rung in self.rungs:
            for entry in rung.entries:
                yield entry.trial, rung.length, entry.metric

    def _create(self, orders: Orders) -> None:
        trial = orders.create()
        self.rung_of[trial] = 0
        orders.train(trial, self.rungs[0].length)

    def _report(self, trial: int, metric: float, orders: Orders) -> None:
        index = self.rung_of[trial]
        rung = self.rungs[index]
        rung.open -= 1
        if index == len(self.rungs) - 1:
            rung.entries.append(Entry(metric, trial))
            self._close(trial, orders)
            trains_on = False
        elif self._stop_once:
            trains_on = self._stop_or_train_on(trial, metric, index, orders)
        else:
            promoted = self._promote(trial, metric, rung)
            if promoted is not None and promoted in self._exited:
                self._advance(promoted, index)
                self._report(promoted, WORST, orders)  # it passes through each rung as the worst
                return
            trains_on = promoted is not None
            if promoted is not None:
                self._advance(promoted, index)
                orders.train(promoted, self.rungs[index + 1].length)
        if not trains_on and len(self.rung_of) - self._invalid < self._bracket.max_trials:
            self._create(orders)
        if not self._stop_once:
            self._close_finished(orders)

    def _advance(self, trial: int, index: int) -> None:
        self.rung_of[trial] = index + 1
        self.rungs[index + 1].open += 1

    def _promote(self, trial: int, metric: float, rung: Rung) -> int | None:
        """Insert a report behind its equals and return the trial that it promotes, if any."""
        before = int(len(rung.entries) / self._divisor)
        now = int((len(rung.entries) + 1) / self._divisor)
        place = bisect_right(rung.entries, metric, key=lambda entry: entry.metric)
        rung.entries.insert(place, Entry(metric, trial, promoted=place < now))
        if place < now:
            return trial
        if now == before or rung.entries[before].promoted:
            return None
        rung.entries[before].promoted = True
        return rung.entries[before].trial

    def _stop_or_train_on(self, trial: int, metric: float, index: int, orders: Orders) -> bool:
        """Insert a report ahead of its equals and return whether its trial continues."""
        rung = self.rungs[index]
        place = bisect_left(rung.entries, metric, key=lambda entry: entry.metric)
        goes_on = place < max(int((len(rung.entries) + 1) / self._divisor), 1)
        rung.entries.insert(place, Entry(metric, trial, promoted=goes_on))
        if trial in self._exited:
            return False
        if goes_on:
            self._advance(trial, index)
            orders.train(trial, self.rungs[index + 1].length)
        else:
            self._close(trial, orders)
        return goes_on

    def _replace(self, trial: int, orders: Orders) -> None:
        self._exited.add(trial)
        self._invalid += 1
        if not self._stop_once:
            self.rungs[self.rung_of[trial]].open -= 1
        for rung in self.rungs[: self.rung_of[trial] + 1]:
            rung.entries = [entry for entry in rung.entries if entry.trial != trial]
        self._close(trial, orders, even_exited=True)
        self._create(orders)

    def _close_finished(self, orders: Orders) -> None:
        """Once all trials reported at the lowest rung: close those that no open report can promote any more."""
        if len(self.rungs[0].entries) != self._bracket.max_trials:
            return
        for rung in self.rungs:
            if rung.open > 0:
                return
            for entry in rung.entries:
                if not entry.promoted and entry.trial not in self._closed:
                    self._close(entry.trial, orders)

    def _close(self, trial: int, orders: Orders, even_exited: bool = False) -> None:
        self._closed.add(trial)
        if even_exited or trial not in self._exited:
            orders.close(trial)
