"""Common parts of the search methods."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field

from trial_runtime.search.events import Action, Close, Create, Event, Train

WORST = 1.7976931348623157e308
"""The metric of a trial that reported none: the largest float."""


@dataclass
class Orders:
    """Collects the actions that follow an event.

    Attributes:
        created: trials created so far; the next one gets the number after it.
    """

    created: int
    actions: list[Action] = field(default_factory=list)

    def create(self) -> int:
        """Create a trial and return its number."""
        self.created += 1
        self.actions.append(Create(self.created))
        return self.created

    def train(self, trial: int, length: int) -> None:
        """Train a trial until ``length`` in all."""
        self.actions.append(Train(trial, length))

    def close(self, trial: int) -> None:
        """End a trial."""
        self.actions.append(Close(trial))


class Schedule(ABC):
    """A search method: decides after each event which trials are created, trained further and closed.

    Smaller metrics win here; who calls negates them where larger ones are better.
    """

    @abstractmethod
    def start(self, orders: Orders) -> None:
        """Create the first trials."""

    @abstractmethod
    def handle(self, event: Event, orders: Orders) -> None:
        """Take one event."""

    @abstractmethod
    def progress(self, closed: int) -> float:
        """Return how much is done, 0 to 1, when ``closed`` trials are closed."""

    def rung_reports(self) -> Iterator[tuple[int, int, float]]:
        """Yield each report at a rung as (trial, the rung's length, metric); nothing where there are no rungs."""
        yield from ()


def comparable(metric: float) -> float:
    """Return ``metric``, or the worst where it is NaN, infinite and bad, or worse than the worst."""
    return WORST if math.isnan(metric) or metric > WORST else metric
