"""Sinks of reported metrics: memory, the log, a file of JSON lines, TensorBoard."""

from __future__ import annotations

import itertools
import json
import logging
import os
import weakref
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from trial_runtime.pytorch._loop.progress import Progress
from trial_runtime.pytorch._loop.throughput import Throughput
from trial_runtime.pytorch._reporting.aggregation import jsonable

logger = logging.getLogger("trial_runtime.pytorch")

ROUTINE = {"routine": True}
"""Attributes of log records that the progress bar shows already: on a terminal only the log file gets them."""


class MetricsSink(Protocol):
    """An observer of the metrics that a run reports; it is called on the chief only."""

    def on_training_metrics(
        self, steps_completed: int, metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]
    ) -> None:
        """Receive a report of training metrics.

        Args:
            steps_completed: batches trained.
            metrics: mean since the last report, with the reducers' metrics, ``batches`` and ``epochs``.
            batch_metrics: for each micro-batch since the last report, its metrics, averaged over ranks.
        """

    def on_validation_metrics(self, steps_completed: int, metrics: dict[str, Any]) -> None:
        """Receive the metrics of a validation, with ``batches`` and ``epochs``."""


class MetricsRecorder:
    """Sink that keeps all reported metrics in memory.

    Attributes:
        training: metrics of each micro-batch, in order.
        averages: ``(steps_completed, metrics)`` of each report.
        validation: ``(steps_completed, metrics)`` of each validation.
    """

    def __init__(self) -> None:
        self.training: list[dict[str, Any]] = []
        self.averages: list[tuple[int, dict[str, Any]]] = []
        self.validation: list[tuple[int, dict[str, Any]]] = []

    def on_training_metrics(
        self, steps_completed: int, metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]
    ) -> None:
        self.training.extend(dict(metrics) for metrics in batch_metrics)
        self.averages.append((steps_completed, dict(metrics)))

    def on_validation_metrics(self, steps_completed: int, metrics: dict[str, Any]) -> None:
        self.validation.append((steps_completed, dict(metrics)))


class LoggingSink:
    """Sink that logs one line a report.

    Args:
        throughput: speed and time left.
    """

    def __init__(self, throughput: Throughput) -> None:
        self.throughput = throughput

    def on_training_metrics(
        self, steps_completed: int, metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]
    ) -> None:
        del batch_metrics
        of = f" of {self.throughput.total}" if self.throughput.total is not None else ""
        line = f"Trained {steps_completed}{of} batches ({self.throughput.summary()}): {_in_words(metrics)}"
        logger.info(line, extra=ROUTINE)

    def on_validation_metrics(self, steps_completed: int, metrics: dict[str, Any]) -> None:
        logger.info(f"Validated after {steps_completed} batches: {_in_words(metrics)}", extra=ROUTINE)


def _in_words(metrics: dict[str, Any]) -> str:
    shown = {name: jsonable(value) for name, value in metrics.items() if name != "batches"}
    return ", ".join(f"{k} {v:.6g}" if isinstance(v, float) else f"{k} {v}" for k, v in shown.items())


_opened: set[Path] = set()
"""Files of metrics that this process has written to."""


class MetricsFile:
    """File of JSON lines, one a report; several ranks may append to it.

    What an earlier process reported beyond the checkpoint that this one resumes from is removed when this one reports
    the same steps, as Determined's master did: each batch is there once.

    Args:
        path: the file; its folder is made.
        is_chief: whether this process removes what it repeats.
    """

    def __init__(self, path: Path, is_chief: bool = True) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._file = path.open("a", encoding="utf-8", buffering=1)  # a line is there as soon as it is written
        is_first = path.absolute() not in _opened  # a second fit() of this process repeats nothing
        _opened.add(path.absolute())
        self._earlier = path.stat().st_size if is_chief and is_first else 0
        self._repeated: set[str] = set()  # groups of which nothing is left to remove
        weakref.finalize(self, self._file.close)

    def write(
        self, group: str, steps_completed: int, metrics: dict[str, Any], after: int | None = None, **more: Any
    ) -> None:
        """Append a report: ``{"group": ..., "steps_completed": n, "metrics": {...}}``, and ``more``.

        Args:
            group: ``training``, ``validation``, or any name.
            steps_completed: batches trained.
            metrics: by name.
            after: the batches that had been trained before those of this report; None: one less.
            more: further fields.
        """
        if self._earlier and group not in self._repeated:
            self._repeated.add(group)
            self._remove(group, steps_completed - 1 if after is None else after)
        line = {"group": group, "steps_completed": steps_completed, "metrics": metrics, **more}
        self._file.write(json.dumps(jsonable(line)) + "\n")

    def _remove(self, group: str, after: int) -> None:
        """Remove an earlier process's reports of a group beyond ``after``; the file stays the one that others hold."""
        content = self._path.read_bytes()
        lines = content.splitlines(keepends=True)
        ends = itertools.accumulate(len(line) for line in lines)
        repeated = [
            end <= self._earlier and _is_beyond(line, group, after) for line, end in zip(lines, ends, strict=True)
        ]
        if not any(repeated):
            return
        first = repeated.index(True)
        kept = b"".join(
            line for line, is_repeated in zip(lines[first:], repeated[first:], strict=True) if not is_repeated
        )
        start = len(b"".join(lines[:first]))
        self._earlier -= sum(len(line) for line, is_repeated in zip(lines, repeated, strict=True) if is_repeated)
        os.truncate(self._path, start)
        self._file.buffer.write(kept)
        self._file.buffer.flush()


def _is_beyond(line: bytes, group: str, after: int) -> bool:
    try:
        report = json.loads(line)
        return bool(report["group"] == group and int(report["steps_completed"]) > after)
    except (ValueError, KeyError, TypeError):  # the end of a line that a killed process wrote
        return False


class JsonLinesSink:
    """Sink that appends one JSON object a report to a file.

    ``{"group": "training" | "validation", "steps_completed": n, "metrics": {...}}``, for training also
    ``"batch_metrics": [...]``, one entry a micro-batch, and ``"pace"``: ``batches_per_second``, ``samples_per_second``
    (null where it is not known) and ``skipped_steps`` since the last report.

    Args:
        path: the file; its folder is made.
        throughput: the speed.
        progress: knows the last report.
    """

    def __init__(self, path: Path, throughput: Throughput, progress: Progress) -> None:
        self.throughput = throughput
        self.progress = progress
        self._file = MetricsFile(path)

    def on_training_metrics(
        self, steps_completed: int, metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]
    ) -> None:
        pace, after = self.throughput.as_dict(), self.progress.last_report
        self._file.write("training", steps_completed, metrics, after, batch_metrics=batch_metrics, pace=pace)

    def on_validation_metrics(self, steps_completed: int, metrics: dict[str, Any]) -> None:
        self._file.write("validation", steps_completed, metrics)


class TensorBoardSink:
    """Sink that writes scalars as Determined did: ``Determined/<name>``, validation metrics with the prefix ``val_``.

    Args:
        writer: a ``SummaryWriter``.
        progress: knows the last report; the metrics since then are those of the batches since then.
    """

    def __init__(self, writer: Any, progress: Progress) -> None:
        self.writer = writer
        self.progress = progress

    def on_training_metrics(
        self, steps_completed: int, metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]
    ) -> None:
        first = self.progress.last_report
        each = max(1, len(batch_metrics) // max(1, steps_completed - first))  # metrics a batch
        for index, batch in enumerate(batch_metrics):
            self._write(first + index // each, batch)
        seen = {name for batch in batch_metrics for name in batch}
        self._write(steps_completed, {name: metrics[name] for name in metrics if name not in seen | _COUNTS})
        self.writer.flush()

    def on_validation_metrics(self, steps_completed: int, metrics: dict[str, Any]) -> None:
        self._write(steps_completed, validation_scalars(metrics))
        self.writer.flush()

    def _write(self, step: int, metrics: dict[str, Any]) -> None:
        for name, value in scalars(metrics).items():
            self.writer.add_scalar(f"Determined/{name}", value, step)


def scalars(metrics: dict[str, Any]) -> dict[str, float]:
    """Return those metrics that are one number each."""
    found = {}
    for name, value in metrics.items():
        if isinstance(value, np.ndarray | np.generic) and value.size == 1:
            value = value.item()
        if isinstance(value, float | int):
            found[name] = float(value)
    return found


def validation_scalars(metrics: dict[str, Any]) -> dict[str, float]:
    """Return the scalars of a validation under Determined's names, with the prefix ``val_``."""
    found = scalars({name: value for name, value in metrics.items() if name not in _COUNTS})
    return {name if name.startswith("val") else f"val_{name}": value for name, value in found.items()}


_COUNTS = {"batches", "epochs"}  # the steps show them
