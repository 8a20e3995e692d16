"""Views of a search while it runs: the table on a terminal, and the study for Optuna's dashboard."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live

from trial_runtime.search.config import Search
from trial_runtime.train.search import live_table, mirror
from trial_runtime.train.search.directory import SearchDirectory
from trial_runtime.train.search.leader import Leader
from trial_runtime.train.search.trial_progress import Standing, Standings

_SECONDS = 0.5


class Views:
    """Keeps the views up to date, in the process that leads.

    Args:
        directory: the search.
        search: its method.
        metric: the searcher's metric.
        hyperparameters: of the experiment config.
        report: receives a line for the user.
    """

    def __init__(
        self,
        directory: SearchDirectory,
        search: Search,
        metric: str,
        hyperparameters: Mapping[str, Any],
        report: Callable[[str], None],
    ) -> None:
        self._directory, self._search, self._metric = directory, search, metric
        self._hyperparameters, self._report = hyperparameters, report
        self._standings = Standings(directory, search, metric)
        self._console = Console(stderr=True)
        self._live: Live | None = None
        self._study: mirror.Mirror | None = None
        self._is_mirrored = mirror.has_optuna()
        self._updated_at = -math.inf

    def __enter__(self) -> Views:
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, leader: Leader, *, at_once: bool = False) -> None:
        """Show what is new, at most twice a second."""
        is_early = not at_once and time.monotonic() - self._updated_at < _SECONDS
        if is_early or not (self._is_mirrored or self._live is not None):
            return
        self._updated_at = time.monotonic()
        state = leader.ledger.state
        standings = self._standings.read(leader.assignments, state)
        if self._is_mirrored:
            self._mirror(standings)
        if self._live is not None:
            rows = max(self._console.size.height - 6, 4)
            table = live_table.render(standings, self._search, self._metric, state.progress(), rows)
            self._live.update(table, refresh=True)

    def _mirror(self, standings: Sequence[Standing]) -> None:
        try:
            if self._study is None:
                path = self._directory.path / mirror.FILE
                name = self._directory.path.name
                self._study = mirror.Mirror(path, name, self._search, self._metric, self._hyperparameters)
            self._study.update(standings)
        except Exception as error:  # nothing of a search depends on the study, whatever Optuna raises
            self._is_mirrored = False
            self._report(f"{mirror.FILE} is not written any more: {error!r}")
