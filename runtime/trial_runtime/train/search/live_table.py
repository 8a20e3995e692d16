"""The trials of a search on a terminal, while it runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from trial_runtime.search.config import Search
from trial_runtime.train.history.records import flattened
from trial_runtime.train.search.result import differing
from trial_runtime.train.search.trial_progress import Standing, State

_MOST_HYPERPARAMETERS = 5
_ORDER: list[State] = ["running", "paused", "waiting", "completed", "stopped", "invalid_hp", "canceled", "errored"]
_STYLES: dict[State, str] = {"running": "green", "completed": "bold", "errored": "red", "invalid_hp": "yellow"}


def render(standings: Sequence[Standing], search: Search, metric: str, progress: float, rows: int) -> Group:
    """Return the table: running trials first, then by metric, at most ``rows`` of them, and a line with the rest."""
    counts = Counter(standing.state for standing in standings)
    shown = sorted(standings, key=lambda standing: _place(standing, search, metric))[:rows]
    names = differing([standing.result for standing in standings])[:_MOST_HYPERPARAMETERS]
    table = Table(box=None, pad_edge=False)
    for heading in ("trial", "state", search.unit, metric, "best", *names):
        is_number = heading not in ("state", *names)
        table.add_column(Text(heading), justify="right" if is_number else "left", no_wrap=True, overflow="ellipsis")
    for standing in shown:
        table.add_row(*_cells(standing, search, metric, names))
    total = ", ".join(f"{counts[state]} {state.replace('_', ' ')}" for state in _ORDER if counts[state])
    more = len(standings) - len(shown)
    end = f"{progress:.0%} done; {len(standings)} of {search.max_trials or '?'} trials: {total}"
    return Group(table, Text(end + (f"; {more} more not shown" if more else ""), style="dim"))


def _place(standing: Standing, search: Search, metric: str) -> tuple[bool, float, int]:
    best = standing.result.best
    number = None if best is None else best.number(metric)
    sign = 1 if search.smaller_is_better else -1
    return standing.state != "running", math.inf if number is None else sign * number, standing.trial


def _cells(standing: Standing, search: Search, metric: str, names: Sequence[str]) -> list[Text]:
    result = standing.result
    length = (result.assignment.length or {}).get(search.unit)
    trained = None if result.last is None else result.last.number(search.unit) or result.last.batches
    hparams = flattened(result.assignment.hparams)
    reached = "" if trained is None else f"{trained:g}"
    return [
        Text(str(standing.trial)),
        Text(standing.state.replace("_", " "), style=_STYLES.get(standing.state, "dim")),
        Text(reached if length is None else f"{reached or 0}/{length}"),
        *(Text("" if each is None else _shown(each.number(metric))) for each in (result.last, result.best)),
        *(Text(_shown(hparams.get(name))) for name in names),
    ]


def _shown(value: object) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
