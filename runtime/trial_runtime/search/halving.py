"""Synchronous successive halving: ``sync_halving``, ``adaptive_simple`` and ``adaptive`` of Determined before 0.15.

All trials of the lowest rung are created at once; how many continue from each rung is fixed beforehand.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from trial_runtime.search.events import Event, ExitedEarly, Validated
from trial_runtime.search.schedule import WORST, Orders, Schedule


@dataclass(frozen=True)
class Rungs:
    """The plan of one bracket: the length of each rung, and how many trials train to it."""

    lengths: tuple[int, ...]
    trials: tuple[int, ...]


def rungs_of_trials(length: int, rungs: int, divisor: float, trials: int) -> Rungs:
    """Return the rungs of one bracket of ``adaptive_simple`` with ``trials`` trials."""
    starts = tuple(max(int(trials / divisor**rung), 1) for rung in range(rungs))
    return Rungs(_lengths(length, rungs, divisor), starts)


def rungs_of_budget(length: int, rungs: int, divisor: float, budget: int) -> Rungs:
    """Return the rungs of ``sync_halving``, or of one bracket of ``adaptive``, that train ``budget`` units in all."""
    lengths = _lengths(length, rungs, divisor)
    shares = [max(int(divisor ** (rungs - 1 - rung)), 1) for rung in range(rungs)]
    added = [after - before for before, after in zip((0, *lengths), lengths, strict=False)]
    factor = budget / sum(more * share for more, share in zip(added, shares, strict=True))
    starts = [int(factor * shares[0])]
    for share in shares[1:]:
        starts.append(max(min(int(factor * share), starts[-1]), 1))
    return Rungs(lengths, tuple(starts))


@dataclass
class _Rung:
    length: int
    starts: int
    promotes: int
    entries: list[tuple[float, int]] = field(default_factory=list)


class SyncHalving(Schedule):
    """One bracket of a synchronous search."""

    def __init__(self, rungs: Rungs) -> None:
        promotes = (*rungs.trials[1:], 0)
        self._rungs = [_Rung(*fields) for fields in zip(rungs.lengths, rungs.trials, promotes, strict=True)]
        self._rung_of: dict[int, int] = {}
        self._exited: set[int] = set()

    def start(self, orders: Orders) -> None:
        """Create all trials."""
        for _ in range(self._rungs[0].starts):
            trial = orders.create()
            self._rung_of[trial] = 0
            orders.train(trial, self._rungs[0].length)

    def handle(self, event: Event, orders: Orders) -> None:
        """Take one event."""
        match event:
            case Validated(trial, metric):
                self._report(trial, metric, orders)
            case ExitedEarly(trial):
                self._exited.add(trial)
                self._report(trial, WORST, orders)

    def progress(self, closed: int) -> float:  # noqa: ARG002  - the reports count
        """Return how much is done, 0 to 1."""
        total = sum(rung.starts * rung.length for rung in self._rungs)
        return sum(len(rung.entries) * rung.length for rung in self._rungs) / total

    def rung_reports(self) -> Iterator[tuple[int, int, float]]:
        """Yield each report as (trial, the rung's length, metric)."""
        for rung in self._rungs:
            for metric, trial in rung.entries:
                yield trial, rung.length, metric

    def _report(self, trial: int, metric: float, orders: Orders) -> None:
        index = self._rung_of[trial]
        rung = self._rungs[index]
        place = bisect_right(rung.entries, metric, key=lambda entry: entry[0])
        rung.entries.insert(place, (metric, trial))
        if index == len(self._rungs) - 1:
            self._close(trial, orders)
            return
        promoted = self._promoted(rung, place)
        if len(rung.entries) == rung.starts:
            for _, left in rung.entries[rung.promotes :]:
                self._close(left, orders)
        if promoted is None:
            return
        self._rung_of[promoted] = index + 1
        if promoted in self._exited:
            self._report(promoted, WORST, orders)
        else:
            orders.train(promoted, self._rungs[index + 1].length)

    def _promoted(self, rung: _Rung, place: int) -> int | None:
        certain = len(rung.entries) + rung.promotes - rung.starts  # whatever the open reports will be
        if certain <= 0:
            return None
        return rung.entries[place if place < certain else certain - 1][1]

    def _close(self, trial: int, orders: Orders) -> None:
        if trial not in self._exited:
            orders.close(trial)


def _lengths(length: int, rungs: int, divisor: float) -> tuple[int, ...]:
    lengths: list[int] = []
    for rung in range(rungs):
        lengths.append(max(int(length / divisor ** (rungs - 1 - rung)), 1, *lengths[-1:]))
    return tuple(lengths)
