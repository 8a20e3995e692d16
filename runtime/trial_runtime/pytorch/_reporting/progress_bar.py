"""Progress bar at the bottom of the terminal; what is printed and logged appears above it."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from rich.console import Console, RenderableType
from rich.file_proxy import FileProxy
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from trial_runtime._run_metrics import clock
from trial_runtime.pytorch._loop.throughput import Throughput
from trial_runtime.pytorch._reporting.aggregation import jsonable
from trial_runtime.train.run.log_tee import Tee


class ProgressBar(Progress):
    """Bar with phase, batches, speed, time left and loss; also a metrics sink.

    The display's thread reads the batches from the loop's own progress some times a second, and the loss is that of the
    last report: the loop does nothing for the bar between reports, and no device is waited for.

    Args:
        throughput: speed and position.
        terminal: where to draw.
        metric: the validation metric to show; None: the loss, or the first one.
    """

    def __init__(self, throughput: Throughput, terminal: TextIO, metric: str | None = None) -> None:
        self.throughput = throughput  # before Progress renders itself
        self._metric = self._validated = ""
        self._shown_metric = metric
        super().__init__(
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=8)),
            TextColumn("{task.fields[details]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            console=Console(file=terminal, highlight=False, emoji=False),
            refresh_per_second=4,
            expand=True,
            redirect_stdout=False,  # Live would also redirect a stdout that leads to a file
            redirect_stderr=False,
        )
        self.add_task("", details="")

    def on_training_metrics(
        self, steps_completed: int, metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]
    ) -> None:
        del steps_completed, batch_metrics
        self._metric = _headline(metrics)

    def on_validation_metrics(self, steps_completed: int, metrics: dict[str, Any]) -> None:
        del steps_completed
        shown = self._shown_metric
        named = {shown: metrics[shown]} if shown in metrics else metrics
        self._validated = _headline(named)

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return the bar as it stands now."""
        for task in self.task_ids:
            self.update(
                task,
                description=self.throughput.phase,
                total=self.throughput.total,
                completed=self.throughput.progress.batches,
                details=self._details(),
            )
        return super().get_renderables()

    def _details(self) -> str:
        throughput, done, total = self.throughput, self.throughput.progress.batches, self.throughput.total
        parts = [f"{done:,}/{total:,} batches" if total is not None else f"{done:,} batches"]
        if throughput.samples_per_second is not None:
            parts.append(f"{throughput.samples_per_second:,.0f} samples/s")
        elif throughput.batches_per_second is not None:
            parts.append(f"{throughput.batches_per_second:,.3g} batches/s")
        if throughput.seconds_left is not None and throughput.phase not in ("trained", "stopped"):
            parts.append(f"{clock(throughput.seconds_left)} left")
        parts += filter(None, (self._metric, self._validated))
        if throughput.skipped_in_all:
            parts.append(f"{throughput.skipped_in_all} steps skipped")
        return "  ".join(parts)

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Show the bar; it stays on the terminal at the end, as ``trained`` or ``stopped``."""
        with self, _printing_above(self.console):
            phase = "stopped"
            try:
                yield
                phase = "trained" if self.throughput.total in (None, self.throughput.progress.batches) else "stopped"
            finally:
                self.throughput.phase = phase


def find_bar_terminal() -> TextIO | None:
    """Return the terminal that stderr leads to; None when it leads elsewhere or the terminal cannot move its cursor."""
    if os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
        return None
    return _terminal_of(sys.stderr)


def _terminal_of(stream: Any) -> TextIO | None:
    stream = stream.console if isinstance(stream, Tee) else stream
    return stream if stream is not None and stream.isatty() else None


class _StreamAboveBar(FileProxy):
    """Stream whose lines appear above the bar.

    A forked child, such as a data loader's worker, has no thread that draws, and maybe its lock: there it writes to the
    terminal itself.
    """

    def __init__(self, console: Console, terminal: TextIO) -> None:
        super().__init__(console, terminal)
        self._process = os.getpid()

    def write(self, text: str) -> int:
        return super().write(text) if os.getpid() == self._process else self.rich_proxied_file.write(text)

    def flush(self) -> None:
        if os.getpid() == self._process:
            super().flush()
        else:
            self.rich_proxied_file.flush()


class _RoutineToLog(logging.Filter):
    """Keeps records that the bar shows already off the terminal: the log file alone gets them."""

    def __init__(self, handler: logging.Handler, stream: Tee) -> None:
        super().__init__()
        self._handler, self._stream = handler, stream

    def filter(self, record: logging.LogRecord) -> bool:
        if not getattr(record, "routine", False):
            return True
        self._stream.write_to_log(self._handler.format(record) + "\n")
        return False


@contextlib.contextmanager
def _printing_above(console: Console) -> Iterator[None]:
    """Send what is printed and logged to a terminal through ``console``; a log file gets it as it was printed."""
    with contextlib.ExitStack() as stack:
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            terminal = _terminal_of(stream)
            if terminal is None:
                continue
            holders: list[tuple[Any, str]] = [(sys, name), *((handler, "stream") for handler in _handlers_of(stream))]
            proxy = _StreamAboveBar(console, terminal)
            if isinstance(stream, Tee):
                for handler in _handlers_of(stream):
                    handler.addFilter(keep := _RoutineToLog(handler, stream))
                    stack.callback(handler.removeFilter, keep)
            for owner, attribute in [(stream, "console")] if isinstance(stream, Tee) else holders:
                stack.callback(setattr, owner, attribute, getattr(owner, attribute))
                setattr(owner, attribute, proxy)
        yield


def _handlers_of(stream: Any) -> list[logging.Handler]:
    """Return the loggers' handlers that keep ``stream``; torch's of 2.15 looks it up in sys instead."""
    loggers = [logging.getLogger(), *(logging.getLogger(name) for name in list(logging.root.manager.loggerDict))]
    return [handler for logger in loggers for handler in logger.handlers if vars(handler).get("stream") is stream]


def _headline(metrics: dict[str, Any]) -> str:
    """Return the loss as text, else the first metric that is a number."""
    numbers = {name: value for name, value in jsonable(metrics).items() if isinstance(value, float)}
    names = sorted(numbers, key=lambda name: (name != "loss", "loss" not in name))
    return f"{names[0]} {numbers[names[0]]:.4g}" if names else ""
