"""The run that a program, or the context of a trial, belongs to."""

from __future__ import annotations

import dataclasses
import faulthandler
import functools
import logging
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trial_runtime._cluster_info import ClusterInfo, get_cluster_info
from trial_runtime._storage.remote import is_url, with_environment_options
from trial_runtime.core._checkpoint import CheckpointContext
from trial_runtime.core._distributed import DistributedContext, DummyDistributedContext
from trial_runtime.core._preempt import PreemptContext, PreemptMode
from trial_runtime.core._searcher import SearcherContext
from trial_runtime.core._train import EarlyExitReason, TensorboardMode, TrainContext
from trial_runtime.errors import InvalidHP

if TYPE_CHECKING:
    from trial_runtime.pytorch._loop.settings import RunSettings
    from trial_runtime.pytorch._reporting.trackers import Ending

logger = logging.getLogger("trial_runtime.core")


class ProfilerContext:
    """Measurement of a machine's load, of which there is none here: use the tools of torch or of the machine."""

    def on(self, sampling_interval: int = 1, samples_per_report: int = 10) -> None:
        """Log that nothing is measured."""
        del sampling_interval, samples_per_report
        logger.info("core_context.profiler measures nothing here; torch.profiler or nvidia-smi do")

    def off(self) -> None:
        """Do nothing."""


class ExperimentalCoreContext:
    """Links of a run to what it uses; they are logged."""

    def report_task_using_checkpoint(self, checkpoint: Any) -> None:
        """Log which checkpoint the run uses."""
        logger.info(f"uses the checkpoint {getattr(checkpoint, 'uuid', checkpoint)}")

    def report_task_using_model_version(self, model_version: Any) -> None:
        """Log which version of a model the run uses."""
        logger.info(f"uses the model version {model_version}")


@dataclasses.dataclass
class Context:
    """A run: its ranks, and where its files go. :func:`init` makes one for a program, ``pytorch.init()`` for a trial.

    Entering it begins to listen for requests to stop. InvalidHP that leaves the block ends the process, with exit code
    0.

    Attributes:
        distributed: the ranks of the run.
        settings: directories of the run, and ``ds-train``'s description of it.
        preempt_mode: who asks for requests to stop.
        tensorboard_mode: whether reported metrics go to TensorBoard.
    """

    distributed: DistributedContext
    settings: RunSettings
    preempt_mode: PreemptMode = PreemptMode.WorkersAskChief
    tensorboard_mode: TensorboardMode = TensorboardMode.AUTO

    @functools.cached_property
    def train(self) -> TrainContext:
        """Return the reports of metrics and progress."""
        return TrainContext(self.settings, self.distributed, self.tensorboard_mode)

    @functools.cached_property
    def checkpoint(self) -> CheckpointContext:
        """Return the run's checkpoints."""
        return CheckpointContext(self.settings, self.distributed)

    @functools.cached_property
    def searcher(self) -> SearcherContext:
        """Return the length to train for."""
        info = self.settings.info
        config, target = (None, None) if info is None else (info.trial._config, info.run.fit.max_length)
        return SearcherContext(self.distributed, config, target, self.train.report_progress)

    @functools.cached_property
    def preempt(self) -> PreemptContext:
        """Return the requests to stop."""
        return PreemptContext(self.distributed, self.preempt_mode)

    @functools.cached_property
    def profiler(self) -> ProfilerContext:
        """Return the profiler, which measures nothing."""
        return ProfilerContext()

    @functools.cached_property
    def experimental(self) -> ExperimentalCoreContext:
        """Return the links to what the run uses."""
        return ExperimentalCoreContext()

    @property
    def info(self) -> ClusterInfo | None:
        """Return ``ds-train``'s description of the run; None without it."""
        return self.settings.info

    def alert(self, title: str | None = None, description: str | None = None, level: str | None = "info") -> None:
        """Log a message.

        Args:
            title: its first words.
            description: the rest.
            level: ``"debug"``, ``"info"``, ``"warn"`` or ``"error"``.
        """
        levels = {"debug": logging.DEBUG, "warn": logging.WARNING, "error": logging.ERROR}
        logger.log(levels.get(level or "", logging.INFO), ": ".join(filter(None, [title, description])))

    def start(self) -> None:
        """Begin to listen for requests to stop."""
        self.preempt.start()

    def close(self, error: BaseException | None = None) -> None:
        """Stop listening, close files, and release the ranks' groups.

        Args:
            error: what ended the program; None: it ended by itself.
        """
        if "preempt" in self.__dict__:
            self.preempt.close()
        if "train" in self.__dict__:
            self.train.close(self._ending(error))
        self.distributed.close()

    def _ending(self, error: BaseException | None) -> Ending:
        from trial_runtime.pytorch._reporting.trackers import ending_of

        ending = ending_of(error)
        return "stopped" if ending == "finished" and PreemptContext.acknowledged else ending

    def __enter__(self) -> Context:
        self.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, InvalidHP):
            logger.info(f"InvalidHP ends the run: {error.msg}")
            self.train.report_early_exit(EarlyExitReason.INVALID_HP)
        self.close(error)
        if isinstance(error, InvalidHP):
            raise SystemExit(0) from error


def init(
    *,
    distributed: DistributedContext | None = None,
    checkpoint_storage: str | dict[str, Any] | None = None,
    preempt_mode: PreemptMode = PreemptMode.WorkersAskChief,
    tensorboard_mode: TensorboardMode = TensorboardMode.AUTO,
) -> Context:
    """Make the run of a program that trains by itself; use it in a ``with`` statement.

    Under ``ds-train`` everything goes to the run directory. Otherwise checkpoints go to ``checkpoints`` in the working
    directory, and metrics are logged.

    Args:
        distributed: the ranks; required when there are several.
        checkpoint_storage: without ``ds-train``, a directory for checkpoints, a URL of a storage, or a dict as in an
            experiment config.
        preempt_mode: who asks for requests to stop.
        tensorboard_mode: whether reported metrics go to TensorBoard.

    Raises:
        ValueError: the process is one of several ranks, and ``distributed`` is None.
    """
    if distributed is None:
        if (size := int(os.environ.get("WORLD_SIZE", "1"))) > 1:
            raise ValueError(
                f"you must provide a valid DistributedContext for a multi-slot task: this is one of {size} ranks; "
                "write core.init(distributed=core.DistributedContext.from_torch_distributed())"
            )
        distributed = DummyDistributedContext()
    distributed._use_launcher_store()
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, all_threads=True)
    if checkpoint_storage is not None and get_cluster_info() is not None:
        logger.warning("core.init(checkpoint_storage=...) is not used: ds-train takes it from the experiment config")
        checkpoint_storage = None
    context = _dummy_init(distributed=distributed, checkpoint_storage=checkpoint_storage)
    return dataclasses.replace(context, preempt_mode=preempt_mode, tensorboard_mode=tensorboard_mode)


def _dummy_init(
    *,
    distributed: DistributedContext | None = None,
    checkpoint_storage: str | Path | dict[str, Any] | None = None,
    tensorboard_path: Path | None = None,
    preempt_mode: PreemptMode = PreemptMode.WorkersAskChief,
) -> Context:
    """Make a run without further checks, for a trial's context in a unit test.

    Args:
        distributed: its ranks; by default this process alone.
        checkpoint_storage: directory for checkpoints, a URL of a storage, or a dict as in an experiment config. By
            default ``checkpoints``.
        tensorboard_path: directory for TensorBoard files. By default ``tensorboard``.
        preempt_mode: who asks for requests to stop.
    """
    from trial_runtime.pytorch._loop.settings import RunSettings

    config = checkpoint_storage if isinstance(checkpoint_storage, dict) else None
    settings = RunSettings.collect(None, {"checkpoint_storage": config} if config else None, None)
    if config is None and checkpoint_storage is not None:
        assert not isinstance(checkpoint_storage, dict)
        if is_url(str(checkpoint_storage)):
            settings.remote = with_environment_options(str(checkpoint_storage))
        else:
            settings.checkpoint_directory = Path(checkpoint_storage)
    settings.tensorboard = tensorboard_path
    return Context(distributed or DummyDistributedContext(), settings, PreemptMode(preempt_mode))
