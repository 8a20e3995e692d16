"""Reporting of a program's own training: metrics, progress, status."""

from __future__ import annotations

import enum
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trial_runtime._atomic_file import write_whole
from trial_runtime._run_metrics import validation_values
from trial_runtime.core._distributed import DistributedContext

if TYPE_CHECKING:
    from trial_runtime.pytorch._loop.settings import RunSettings
    from trial_runtime.pytorch._reporting.trackers import Ending, TrackerSink

logger = logging.getLogger("trial_runtime.core")

TRIAL_FILE = "trial.json"
"""File in a run directory with what a program reported beside metrics: status, progress, metadata."""


class EarlyExitReason(enum.Enum):
    """Reason to end a trial before its length."""

    INVALID_HP = "EXITED_REASON_INVALID_HP"
    USER_REQUESTED_STOP = "EXITED_REASON_USER_REQUESTED_STOP"


class TensorboardMode(enum.Enum):
    """The writer of reported metrics to TensorBoard: the runtime (AUTO) or the program (MANUAL)."""

    AUTO = "AUTO"
    MANUAL = "MANUAL"


class TrainContext:
    """Reports of a program: metrics go to the run's ``metrics.jsonl`` and to TensorBoard, the rest to ``trial.json``.

    By convention only the chief reports. Without a run directory, reports are only logged.

    Args:
        settings: directories of the run.
        distributed: its ranks.
        tensorboard_mode: whether reported metrics go to TensorBoard.
    """

    def __init__(
        self, settings: RunSettings, distributed: DistributedContext, tensorboard_mode: TensorboardMode
    ) -> None:
        self._settings = settings
        self._distributed = distributed
        self._tensorboard_mode = TensorboardMode(tensorboard_mode)
        self._file: Any = None
        self._tensorboard: Any = None
        self._trackers: list[TrackerSink] = []
        self._names: dict[tuple[str, int], set[str]] = {}
        self._facts: dict[str, Any] = {}
        self._percent = -1

    def report_training_metrics(
        self, steps_completed: int, metrics: dict[str, Any], batch_metrics: list[dict[str, Any]] | None = None
    ) -> None:
        """Report training metrics.

        Args:
            steps_completed: batches trained.
            metrics: by name.
            batch_metrics: the metrics of each batch since the last report.
        """
        self._report("training", steps_completed, metrics, batch_metrics)

    def report_validation_metrics(self, steps_completed: int, metrics: dict[str, Any]) -> None:
        """Report validation metrics. Bytes are left out, with a warning.

        Raises:
            RuntimeError: a metric is None.
        """
        self._report("validation", steps_completed, metrics, None)

    def report_metrics(self, group: str, steps_completed: int, metrics: dict[str, Any]) -> None:
        """Report metrics of any group; ``"training"`` and ``"validation"`` are those of the other two methods.

        Raises:
            ValueError: the name of the group has a dot.
        """
        if "." in group:
            raise ValueError(f"The name of a group of metrics must not have a dot, got {group!r}.")
        self._report(group, steps_completed, metrics, None)

    def report_progress(self, progress: float) -> None:
        """Report how much is done, from 0 to 1. Each new percent is logged.

        Raises:
            ValueError: it is not between 0 and 1.
        """
        if progress < 0 or progress > 1:
            raise ValueError(f"Progress should be between 0 and 1, not {progress}")
        if int(100 * progress) != self._percent:
            self._percent = int(100 * progress)
            logger.info(f"progress: {self._percent}%")
            self._record(progress=progress)

    def set_status(self, status: str) -> None:
        """Log a few words about what the program does, and keep them in ``trial.json``."""
        logger.info(f"status: {status}")
        self._record(status=status)

    def set_metadata(self, metadata: dict[str, Any]) -> dict[str, Any] | None:
        """Keep the metadata of the run, in place of earlier metadata; what was kept."""
        self._record(metadata=metadata)
        return self.get_metadata()

    def get_metadata(self) -> dict[str, Any] | None:
        """Return the metadata of the run; None when none was set."""
        metadata: dict[str, Any] | None = self._read().get("metadata")
        return metadata

    def report_early_exit(self, reason: EarlyExitReason) -> None:
        """Log why the program ends before its length, and keep it in ``trial.json``."""
        logger.info(f"report_early_exit({reason})")
        self._record(early_exit=EarlyExitReason(reason).value)

    def get_experiment_best_validation(self) -> float | None:
        """Return the best ``searcher.metric`` that was reported so far; None without a report or such a metric."""
        info, path = self._settings.info, self._settings.metrics_path
        if info is None or path is None:
            return None
        values = validation_values(path, info.run.searcher_metric).values()
        return (min if info.run.smaller_is_better else max)(values, default=None)

    def get_tensorboard_path(self) -> Path:
        """Return the directory of TensorBoard files; it is made here."""
        path = self._settings.tensorboard_directory
        path.mkdir(parents=True, exist_ok=True)
        return path

    def upload_tensorboard_files(
        self,
        selector: Callable[[Path], bool] = lambda _: True,
        mangler: Callable[[Path, int], Path] = lambda p, __: p,
    ) -> None:
        """Do nothing: the files are where :meth:`get_tensorboard_path` shows.

        Raises:
            RuntimeError: in AUTO mode.
        """
        del selector, mangler
        if self._tensorboard_mode is TensorboardMode.AUTO:
            raise RuntimeError("upload_tensorboard_files can only be used in MANUAL mode")

    def _report(
        self, group: str, steps_completed: int, metrics: dict[str, Any], batch_metrics: list[dict[str, Any]] | None
    ) -> None:
        logger.info(f"report_metrics(group={group}, steps_completed={steps_completed}, metrics={metrics})")
        kept = _reportable(metrics) if group == "validation" else metrics
        self._warn_about_repeated_names(group, steps_completed, kept)
        path = self._settings.metrics_path
        if path is None:
            return
        if self._file is None:
            self._open(path)
        self._file.write(
            group, steps_completed, kept, **({} if batch_metrics is None else {"batch_metrics": batch_metrics})
        )
        self._send_to_trackers(group, steps_completed, kept)
        if self._tensorboard_mode is TensorboardMode.AUTO and group in ("training", "validation"):
            self._write_to_tensorboard(group, steps_completed, kept, batch_metrics or [])

    def _open(self, path: Path) -> None:
        from trial_runtime.pytorch._reporting.sinks import MetricsFile
        from trial_runtime.pytorch._reporting.trackers import make_trackers

        self._file = MetricsFile(path, self._distributed.rank == 0)
        self._trackers = make_trackers(self._settings) if self._distributed.rank == 0 else []
        for tracker in self._trackers:
            tracker.start()

    def _send_to_trackers(self, group: str, steps_completed: int, metrics: dict[str, Any]) -> None:
        for tracker in self._trackers:
            if group == "validation":
                tracker.on_validation_metrics(steps_completed, metrics)
            else:
                prefix = "" if group == "training" else f"{group}_"
                named = {f"{prefix}{name}": value for name, value in metrics.items()}
                tracker.on_training_metrics(steps_completed, named, [])

    def _write_to_tensorboard(
        self, group: str, steps_completed: int, metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]
    ) -> None:
        from trial_runtime.pytorch._loop.progress import Progress
        from trial_runtime.pytorch._reporting.aggregation import to_numpy
        from trial_runtime.pytorch._reporting.sinks import TensorBoardSink

        if self._tensorboard is None:
            from torch.utils.tensorboard import SummaryWriter

            path, rank = self.get_tensorboard_path(), self._distributed.rank
            writer: Any = SummaryWriter(str(path if rank == 0 else path / f"rank_{rank}"))
            self._tensorboard = TensorBoardSink(writer, Progress())
        self._tensorboard.progress.last_report = steps_completed - len(batch_metrics)
        if group == "training":
            each = [to_numpy(dict(one)) for one in batch_metrics]
            self._tensorboard.on_training_metrics(steps_completed, to_numpy(dict(metrics)), each)
        else:
            self._tensorboard.on_validation_metrics(steps_completed, to_numpy(dict(metrics)))

    def _warn_about_repeated_names(self, group: str, steps_completed: int, metrics: dict[str, Any]) -> None:
        there = self._names.setdefault((group, steps_completed), set())
        if repeated := sorted(there & set(metrics)):
            logger.warning(f"Reported twice for {group!r} at step {steps_completed}: {', '.join(repeated)}.")
        there.update(metrics)

    def _read(self) -> dict[str, Any]:
        directory = self._settings.directory
        if directory is not None and (directory / TRIAL_FILE).is_file():
            self._facts = json.loads((directory / TRIAL_FILE).read_text(encoding="utf-8"))
        return self._facts

    def _record(self, **facts: Any) -> None:
        self._facts = {**self._read(), **facts}
        directory = self._settings.directory
        if directory is None:
            return
        directory.mkdir(parents=True, exist_ok=True)
        write_whole(directory / TRIAL_FILE, json.dumps(self._facts, indent=2) + "\n")

    def close(self, ending: Ending = "finished") -> None:
        """Close the files, and the run in trackers.

        Args:
            ending: how the program ended.
        """
        for tracker in self._trackers:
            tracker.finish(ending)
        self._trackers = []
        if self._tensorboard is not None:
            self._tensorboard.writer.close()
        self._tensorboard = self._file = None


def _reportable(metrics: dict[str, Any]) -> dict[str, Any]:
    """Return the validation metrics without bytes."""
    for name, value in metrics.items():
        if value is None:
            raise RuntimeError(f"Validation metric '{name}' returned an invalid scalar value: {value}")
    kept = {name: value for name, value in metrics.items() if not isinstance(value, bytes | bytearray)}
    if left := [name for name in metrics if name not in kept]:
        logger.warning("Removed non serializable metrics: %s", ", ".join(left))
    return kept
