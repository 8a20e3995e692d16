"""Sinks that send a run's metrics to experiment trackers: Trackio, MLflow and Weights & Biases."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from trial_runtime._redaction import masked_hparams
from trial_runtime._run_record import read_record, update_record
from trial_runtime.pytorch._reporting.sinks import scalars, validation_scalars

if TYPE_CHECKING:
    from trial_runtime.pytorch._loop.settings import RunSettings

logger = logging.getLogger("trial_runtime.pytorch")

_RECORDED = "trackers"
Ending = Literal["finished", "failed", "stopped"]
"""How a run ended; it is stopped when a signal ended it, and can be resumed."""
_WAITING_REPORTS = 10_000
_SECONDS_TO_FINISH = 60.0


@dataclasses.dataclass(frozen=True)
class TrackedRun:
    """The description of a run for a tracker.

    Attributes:
        project: the experiment's name.
        name: the run directory's name.
        unique_name: a name that no other run has.
        directory: the run directory.
        hparams: hyperparameters, secrets masked.
        id: the tracker's id of the run, where an earlier start of it was tracked.
    """

    project: str
    name: str
    unique_name: str
    directory: Path
    hparams: dict[str, Any]
    id: str | None


class Tracker(Protocol):
    """One run in a tracker.

    Attributes:
        id: identifies it there, over all starts of the run.
    """

    id: str

    def log(self, batches: int, metrics: dict[str, float]) -> None:
        """Send metrics after so many batches."""

    def finish(self, ending: Ending) -> None:
        """Send what is left, and how the run ended."""


class TrackioTracker:
    """Run in Trackio, in the folder ``TRACKIO_DIR`` or on the server that its own variables name."""

    def __init__(self, run: TrackedRun) -> None:
        import trackio

        self.id = run.id or run.unique_name
        with contextlib.redirect_stdout(sys.stderr):
            self._run = trackio.init(project=run.project, name=self.id, config=run.hparams, resume="allow")

    def log(self, batches: int, metrics: dict[str, float]) -> None:
        self._run.log(metrics, step=batches)

    def finish(self, ending: Ending) -> None:
        del ending
        with contextlib.redirect_stdout(sys.stderr):
            self._run.finish()


class MLflowTracker:
    """Run in MLflow, in the store that ``MLFLOW_TRACKING_URI`` names."""

    def __init__(self, run: TrackedRun) -> None:
        from mlflow import MlflowClient

        self._client = MlflowClient()
        existing = None if run.id is None else self._existing(run.id)
        if existing is not None:
            self.id = existing
            self._client.update_run(self.id, status="RUNNING")
            return
        tags = {"run_directory": str(run.directory)}
        created = self._client.create_run(self._experiment(run.project), run_name=run.name, tags=tags)
        self.id = str(created.info.run_id)
        for name, value in _flattened(run.hparams).items():
            self._client.log_param(self.id, _mlflow_name(name), str(value)[:6000])

    def _experiment(self, name: str) -> str:
        from mlflow.exceptions import MlflowException

        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        try:
            return str(self._client.create_experiment(name))
        except MlflowException:  # another run created it just now
            found = self._client.get_experiment_by_name(name)
            if found is None:
                raise
            return str(found.experiment_id)

    def _existing(self, identifier: str) -> str | None:
        from mlflow.exceptions import MlflowException

        try:
            return str(self._client.get_run(identifier).info.run_id)
        except MlflowException:  # removed since, or another store
            return None

    def log(self, batches: int, metrics: dict[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        entries = [Metric(_mlflow_name(name), value, now, batches) for name, value in metrics.items()]
        for first in range(0, len(entries), 1000):  # as many as one call takes
            self._client.log_batch(self.id, metrics=entries[first : first + 1000])

    def finish(self, ending: Ending) -> None:
        status = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}[ending]
        self._client.set_terminated(self.id, status)


class WandbTracker:
    """Run in Weights & Biases; ``WANDB_MODE=offline`` keeps it in the run directory."""

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        self._run = wandb.init(
            project=re.sub(r"[/\\#?%:]", "-", run.project),
            name=run.name,
            id=run.id,
            resume="allow",
            dir=str(run.directory),
            config=run.hparams,
            settings=wandb.Settings(console="off"),  # the output is in log/
        )
        self.id = str(self._run.id)
        # A run that resumes from an earlier checkpoint counts back, which wandb's own step cannot.
        self._run.define_metric("batches")
        self._run.define_metric("*", step_metric="batches")

    def log(self, batches: int, metrics: dict[str, float]) -> None:
        self._run.log({**metrics, "batches": batches})

    def finish(self, ending: Ending) -> None:
        self._run.finish(exit_code=0 if ending == "finished" else 1)


_TRACKERS: dict[str, Callable[[TrackedRun], Tracker]] = {
    "trackio": TrackioTracker,
    "mlflow": MLflowTracker,
    "wandb": WandbTracker,
}


class TrackerSink:
    """Sink that sends reports to one tracker, from a thread: neither a slow nor a broken one stops training.

    Args:
        name: of the tracker.
        run: what it shows.
    """

    def __init__(self, name: str, run: TrackedRun) -> None:
        self._name = name
        self._run = run
        self._reports: queue.Queue[tuple[int, dict[str, float]] | None] = queue.Queue(_WAITING_REPORTS)
        self._thread: threading.Thread | None = None
        self._ending: Ending = "failed"
        self._failed = False

    def on_training_metrics(
        self, steps_completed: int, metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]
    ) -> None:
        del batch_metrics
        self._send(steps_completed, {name: value for name, value in scalars(metrics).items() if name != "batches"})

    def on_validation_metrics(self, steps_completed: int, metrics: dict[str, Any]) -> None:
        self._send(steps_completed, validation_scalars(metrics))

    def start(self) -> None:
        """Open the run in the tracker, the same one as before a restart; a failure is one warning."""
        try:
            tracker = _TRACKERS[self._name](self._run)
        except Exception as error:
            self._warn(error)
            return
        logger.info(f"{self._name}: the run is {tracker.id} in the project {self._run.project}")
        known = _recorded(self._run.directory)
        update_record(self._run.directory, **{_RECORDED: {**known, self._name: tracker.id}})
        self._thread = threading.Thread(target=self._work, args=(tracker,), name=f"{self._name} reports", daemon=True)
        self._thread.start()

    def finish(self, ending: Ending) -> None:
        """Wait until all reports are sent, a minute at most."""
        if self._thread is None:
            return
        self._ending = ending
        self._put(None)
        self._thread.join(_SECONDS_TO_FINISH)
        if self._thread.is_alive():
            self._warn(TimeoutError(f"{self._reports.qsize()} reports were not sent in {_SECONDS_TO_FINISH:.0f} s"))

    def _work(self, tracker: Tracker) -> None:
        try:
            while (report := self._reports.get()) is not None:
                tracker.log(*report)
            tracker.finish(self._ending)
        except Exception as error:
            self._warn(error)

    def _send(self, batches: int, metrics: dict[str, float]) -> None:
        if self._thread is not None and metrics and not self._failed:
            self._put((batches, metrics))

    def _put(self, report: tuple[int, dict[str, float]] | None) -> None:
        try:
            self._reports.put_nowait(report)
        except queue.Full:
            self._warn(TimeoutError(f"{self._reports.qsize()} reports wait to be sent"))

    def _warn(self, error: Exception) -> None:
        if not self._failed:
            self._failed = True
            what = str(error).strip().splitlines()[:1] or [type(error).__name__]
            logger.warning(f"{self._name} gets no further metrics of this run: {what[0]}. Training continues.")


def make_trackers(settings: RunSettings) -> list[TrackerSink]:
    """Return a sink for each tracker that the run's config names; TensorBoard has its own."""
    info, directory = settings.info, settings.directory
    if info is None or directory is None or not info.run.log_with:
        return []
    known = _recorded(directory)
    run = TrackedRun(
        project=info.run.name or directory.name,
        name=directory.name,
        unique_name=f"{directory.name}-{info.task_id}",
        directory=directory,
        hparams=masked_hparams(settings.hparams or {}),
        id=None,
    )
    return [
        TrackerSink(name, dataclasses.replace(run, id=known.get(name)))
        for name in info.run.log_with
        if name in _TRACKERS
    ]


@contextlib.contextmanager
def tracking(trackers: list[TrackerSink]) -> Iterator[None]:
    """Have trackers follow a training from its start to its end."""
    error: BaseException | None = None
    for tracker in trackers:
        tracker.start()
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        for tracker in trackers:
            tracker.finish(ending_of(error))


def ending_of(error: BaseException | None) -> Ending:
    """Return how a run ended that raised ``error``, None for none; a signal ends it with exit code 128 + its number."""
    is_signal = isinstance(error, SystemExit) and isinstance(error.code, int) and error.code > 128
    if isinstance(error, KeyboardInterrupt) or is_signal:
        return "stopped"
    return "finished" if error is None or (isinstance(error, SystemExit) and not error.code) else "failed"


def _recorded(directory: Path) -> dict[str, str]:
    try:
        known = read_record(directory).get(_RECORDED)
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _flattened(hparams: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in hparams.items():
        flat.update(_flattened(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value})
    return flat


def _mlflow_name(name: str) -> str:
    return re.sub(r"[^\w\-. /]", "_", name)
