"""A progress bar at the bottom of the terminal, above which everything that is printed goes on as before."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from trial_runtime._terminal import printing_above, terminal_of
from trial_runtime.pytorch._loop.throughput import Throughput, clock
from trial_runtime.pytorch._reporting.aggregation import jsonable

_REFRESHES_A_SECOND = 4


class ProgressBar:
    """What the bar shows; also an observer of metrics.

    A thread of the display asks for it some times a second. The training loop does nothing for it: batches are read
    from where training stands, the loss is that of the last report, so no device is waited for.

    Args:
        throughput: speed and position.
    """

    def __init__(self, throughput: Throughput) -> None:
        self.throughput = throughput
        self.metric = ""

    def on_training_metrics(
        self, steps_completed: int, metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]
    ) -> None:
        del steps_completed, batch_metrics
        self.metric = _headline(metrics)

    def on_validation_metrics(self, steps_completed: int, metrics: dict[str, Any]) -> None:
        del steps_completed, metrics

    def render(self) -> Any:
        """A line: what is done, the bar, batches, speed, time left, loss."""
        from rich.progress_bar import ProgressBar as Bar
        from rich.table import Table
        from rich.text import Text

        throughput, done, total = self.throughput, self.throughput.progress.batches, self.throughput.total
        shown = [f"{done:,}/{total:,} batches" if total is not None else f"{done:,} batches"]
        if throughput.samples_per_second is not None:
            shown.append(f"{throughput.samples_per_second:,.0f} samples/s")
        elif throughput.batches_per_second is not None:
            shown.append(f"{throughput.batches_per_second:,.3g} batches/s")
        if throughput.seconds_left is not None and throughput.phase not in ("trained", "stopped"):
            shown.append(f"{clock(throughput.seconds_left)} left")
        if self.metric:
            shown.append(self.metric)
        if throughput.skipped_in_all:
            shown.append(f"{throughput.skipped_in_all} steps skipped")
        line = Table.grid(padding=(0, 1), expand=True)
        line.add_column(no_wrap=True)
        line.add_column(ratio=1, min_width=8)
        line.add_column(no_wrap=True, overflow="ellipsis")
        line.add_row(
            Text(throughput.phase, style="bold"),
            Bar(total, done, pulse=total is None),
            Text("  ".join(shown), no_wrap=True),
        )
        return line

    @contextlib.contextmanager
    def shown(self, terminal: TextIO) -> Iterator[None]:
        """Show it on a terminal; it stays there at the end."""
        from rich.console import Console
        from rich.live import Live

        console = Console(file=terminal, highlight=False, emoji=False)
        live = Live(
            get_renderable=self.render,
            console=console,
            refresh_per_second=_REFRESHES_A_SECOND,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        with live, printing_above(console):
            done = "stopped"
            try:
                yield
                done = "trained" if self.throughput.total in (None, self.throughput.progress.batches) else "stopped"
            finally:
                self.throughput.phase = done


def find_bar_terminal() -> TextIO | None:
    """The terminal that stderr goes to; None when it goes elsewhere, or the terminal cannot move its cursor."""
    if os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
        return None
    return terminal_of(sys.stderr)


def _headline(metrics: dict[str, Any]) -> str:
    """The loss, else whatever comes first and is a number."""
    numbers = {name: value for name, value in jsonable(metrics).items() if isinstance(value, float)}
    names = sorted(numbers, key=lambda name: (name != "loss", "loss" not in name))
    return f"{names[0]} {numbers[names[0]]:.4g}" if names else ""
