"""The searcher of an experiment config: which method, with which brackets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from trial_runtime.search import halving
from trial_runtime.search.asha import Asha
from trial_runtime.search.asha_by_time import AshaByTime
from trial_runtime.search.brackets import Bracket, adaptive_brackets, asha_bracket, rungs_of_mode
from trial_runtime.search.fixed_trials import FixedTrials
from trial_runtime.search.halving import Rungs, SyncHalving
from trial_runtime.search.schedule import Schedule
from trial_runtime.search.tournament import Tournament

Generation = Literal["promotion", "stop_once", "time"]

SEARCHES = ("random", "grid", "adaptive_asha", "async_halving", "adaptive_simple", "adaptive", "sync_halving")
"""The searchers that run several trials here."""

REFUSED = {
    "custom": "its code drives the cluster's master through an API that only the cluster has",
    "pbt": "population based training was removed in Determined 0.17",
}
"""The searchers that cannot run here, with the reason."""


@dataclass(frozen=True)
class Search:
    """The searcher's fields, with Determined's defaults.

    Attributes:
        name: the method, one of ``SEARCHES`` or ``single``.
        length: ``max_length`` or ``max_time`` in its unit; None where random and grid have none.
        unit: ``batches``, ``epochs`` or ``records``; the time metric's name for the generation ``time``.
        max_trials: trials to run; the points of the grid.
        max_concurrent_trials: trials at once, 0 for as many as the method takes.
        generation: which of Determined's three ASHAs is meant; None for other methods.
    """

    name: str
    length: int | None
    unit: str
    max_trials: int
    max_concurrent_trials: int = 16
    divisor: float = 4
    mode: str = "standard"
    max_rungs: int = 5
    num_rungs: int = 5
    bracket_rungs: tuple[int, ...] = ()
    budget: int = 0
    generation: Generation | None = None
    smaller_is_better: bool = True

    @property
    def target(self) -> dict[str, int] | None:
        """Return how long a trial trains at most, as ``{"batches": 100}``; None where only the trial knows."""
        is_length = self.generation != "time" or self.unit in ("batches", "epochs")
        return {self.unit: self.length} if self.length is not None and is_length else None

    def brackets(self) -> Sequence[Bracket | Rungs]:
        """Return the brackets of an adaptive or halving search; none for other methods."""
        length, count = self.length or 0, self.max_trials
        match self.name:
            case "adaptive_asha":
                return adaptive_brackets(
                    length, count, self.max_concurrent_trials, self.divisor, self.mode, self.max_rungs,
                    self.bracket_rungs,
                )  # fmt: skip
            case "async_halving":
                return [asha_bracket(length, self.num_rungs, count, self.max_concurrent_trials, self.divisor)]
            case "sync_halving":
                return [halving.rungs_of_budget(length, self.num_rungs, self.divisor, self.budget)]
            case "adaptive_simple":
                rungs = sorted(rungs_of_mode(self.mode, self.max_rungs), reverse=True)
                each, more = divmod(count, len(rungs))
                return [
                    halving.rungs_of_trials(length, n, self.divisor, max(each + (index < more), 1))
                    for index, n in enumerate(rungs)
                ]
            case "adaptive":
                rungs = sorted(self.bracket_rungs or rungs_of_mode(self.mode, self.max_rungs), reverse=True)
                share = self.budget // len(rungs)
                return [halving.rungs_of_budget(length, n, self.divisor, share) for n in rungs]
        return []

    def make_schedule(self) -> Schedule:
        """Return the method, before its start."""
        if self.name in ("random", "grid", "single"):
            at_once = 1 if self.name == "single" else self.max_concurrent_trials
            return FixedTrials(self.max_trials, at_once, self.length, replaces_invalid=self.name == "random")
        brackets = [self._make_bracket(bracket) for bracket in self.brackets()]
        return brackets[0] if len(brackets) == 1 else Tournament(brackets)

    def _make_bracket(self, bracket: Bracket | Rungs) -> Schedule:
        if isinstance(bracket, Rungs):
            return SyncHalving(bracket)
        if self.generation == "time":
            return AshaByTime(bracket, self.divisor)
        return Asha(bracket, self.divisor, stop_once=self.generation == "stop_once")
