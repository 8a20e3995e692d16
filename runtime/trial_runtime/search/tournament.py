"""Several searches over one stream of trials: the brackets of an adaptive search."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from trial_runtime.search.events import Closed, Create, Event
from trial_runtime.search.schedule import Orders, Schedule


class Tournament(Schedule):
    """Passes each event on to the bracket that created its trial."""

    def __init__(self, brackets: Sequence[Schedule]) -> None:
        self.brackets = list(brackets)
        self.bracket_of: dict[int, int] = {}
        self._closed = [0] * len(self.brackets)

    def start(self, orders: Orders) -> None:
        """Create the first trials, bracket by bracket."""
        for index, bracket in enumerate(self.brackets):
            self._run(index, bracket.start, orders)

    def handle(self, event: Event, orders: Orders) -> None:
        """Take one event."""
        index = self.bracket_of[event.trial]
        self._closed[index] += isinstance(event, Closed)
        self._run(index, lambda collector: self.brackets[index].handle(event, collector), orders)

    def progress(self, closed: int) -> float:  # noqa: ARG002  - each bracket has its own count
        """Return the mean of the brackets' progress, 0 to 1."""
        parts = [bracket.progress(closed) for bracket, closed in zip(self.brackets, self._closed, strict=True)]
        return sum(parts) / len(parts)

    def rung_reports(self) -> Iterator[tuple[int, int, float]]:
        """Yield each report of all brackets as (trial, the rung's length, metric)."""
        for bracket in self.brackets:
            yield from bracket.rung_reports()

    def _run(self, index: int, step: Callable[[Orders], None], orders: Orders) -> None:
        known = len(orders.actions)
        step(orders)
        for action in orders.actions[known:]:
            if isinstance(action, Create):
                self.bracket_of[action.trial] = index
