"""``random``, ``grid`` and ``single``: so many trials of one length, whatever they report."""

from __future__ import annotations

from trial_runtime.search.events import Closed, Event, ExitedEarly, Validated
from trial_runtime.search.schedule import Orders, Schedule


class FixedTrials(Schedule):
    """Trains ``trials`` trials, ``concurrency`` at once (0: all).

    Args:
        length: ``max_length``; None where the trials know their end.
        replaces_invalid: whether a trial whose hyperparameters turn out invalid is replaced by another.
    """

    def __init__(self, trials: int, concurrency: int, length: int | None, replaces_invalid: bool) -> None:
        self._trials = trials
        self._concurrency = concurrency or trials
        self._length = length
        self._replaces_invalid = replaces_invalid
        self._created = 0

    def start(self, orders: Orders) -> None:
        """Create the first trials."""
        for _ in range(min(self._trials, self._concurrency)):
            self._create(orders)

    def handle(self, event: Event, orders: Orders) -> None:
        """Take one event."""
        match event:
            case ExitedEarly(_, "invalid_hp") if self._replaces_invalid:
                self._created -= 1  # the close that follows makes another
            case Closed() if self._created < self._trials:
                self._create(orders)
            case Validated(trial):
                if self._length is not None:
                    orders.close(trial)

    def progress(self, closed: int) -> float:
        """Return how much is done, 0 to 1."""
        return min(closed / self._trials, 1.0)

    def _create(self, orders: Orders) -> None:
        self._created += 1
        trial = orders.create()
        if self._length is not None:
            orders.train(trial, self._length)
