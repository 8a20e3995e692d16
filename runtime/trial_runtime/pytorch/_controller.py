"""One training: the loop and its parts, built from the arguments of ``fit()``."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from trial_runtime._cluster_info import FitDefaults
from trial_runtime._run_record import update_record
from trial_runtime.pytorch._checkpoints.policy import CheckpointPolicy
from trial_runtime.pytorch._checkpoints.run_state import RunCheckpointer
from trial_runtime.pytorch._checkpoints.store import CheckpointStore
from trial_runtime.pytorch._context import TrialContext
from trial_runtime.pytorch._data import rng
from trial_runtime.pytorch._loop.progress import Progress
from trial_runtime.pytorch._loop.pytorch_strategy import PyTorchStrategy
from trial_runtime.pytorch._loop.strategy import Strategy
from trial_runtime.pytorch._loop.throughput import Throughput
from trial_runtime.pytorch._loop.training_loop import FitPlan, TrainingLoop
from trial_runtime.pytorch._reporting.divergence import DivergenceSink
from trial_runtime.pytorch._reporting.early_stopping import EarlyStoppingSink
from trial_runtime.pytorch._reporting.progress_bar import ProgressBar, find_bar_terminal
from trial_runtime.pytorch._reporting.sinks import JsonLinesSink, LoggingSink, MetricsSink, TensorBoardSink
from trial_runtime.pytorch._reporting.trackers import make_trackers, tracking
from trial_runtime.pytorch._train_units import Batch, TrainUnit


class TrialController:
    """One training of a trial; :meth:`run` does the work.

    ``Trainer.fit`` makes it and explains the arguments. Unit tests written for Determined create one directly,
    so it has the arguments that Determined's have.

    Args:
        searcher_metric_name, smaller_is_better: what ``checkpoint_policy="best"`` compares.
        steps_completed, local_training, global_batch_size, profiling_enabled: accepted and not used; the checkpoint
            knows where training continues.
    """

    _strategy_class: type[Strategy]

    def __init__(
        self,
        trial_inst: Any,
        context: Any,
        checkpoint_period: TrainUnit | None,
        validation_period: TrainUnit | None,
        reporting_period: TrainUnit | None,
        smaller_is_better: bool,
        steps_completed: int,
        latest_checkpoint: str | Path | None,
        local_training: bool,
        test_mode: bool,
        searcher_metric_name: str | None,
        checkpoint_policy: str,
        step_zero_validation: bool,
        max_length: TrainUnit,
        global_batch_size: int | None,
        profiling_enabled: bool | None,
    ) -> None:
        del steps_completed, local_training, global_batch_size, profiling_enabled
        self.context: TrialContext = context
        context._progress = Progress()  # counts begin anew, also in a second fit()
        settings = self.context._settings
        fit = FitDefaults() if settings.info is None else settings.info.run.fit
        policy = CheckpointPolicy(checkpoint_policy, searcher_metric_name, smaller_is_better)
        plan = FitPlan(
            length=Batch(1) if test_mode else max_length,
            validation_period=validation_period,
            checkpoint_period=checkpoint_period,
            reporting_period=reporting_period,
            checkpoint_policy=policy,
            latest_checkpoint=None if latest_checkpoint is None else str(latest_checkpoint),
            step_zero_validation=step_zero_validation,
            test_mode=test_mode,
            validate_only=fit.validate_only,
            profiled_batches=fit.profiled_batches,
        )
        store = CheckpointStore(settings.checkpoint_directory, self.context.distributed, settings.remote)
        self._strategy = self._strategy_class(trial_inst, self.context)
        self._throughput = Throughput(self.context._progress, plan.length, self._samples)
        terminal = find_bar_terminal() if self.context.distributed.rank == 0 else None
        self._bar = None if terminal is None else ProgressBar(self._throughput, terminal, policy.metric)
        self._divergence = DivergenceSink(self._throughput, self._request_stop if fit.stop_on_nan else None)
        self._trackers = make_trackers(settings) if self.context.distributed.rank == 0 else []
        checkpointer = RunCheckpointer(self._strategy, store, policy, self._sinks(policy))
        self._loop = TrainingLoop(self._strategy, plan, checkpointer, self._throughput)

    @classmethod
    def pre_execute_hook(cls, trial_seed: int, distributed_backend: Any) -> None:
        """Seed the generators, as ``init()`` does, for a context that is made directly.

        Args:
            trial_seed: the seed, the same on every rank.
            distributed_backend: accepted and not used; torch.distributed comes up when several ranks first need it.
        """
        del distributed_backend
        rng.seed_everything(trial_seed)

    def run(self) -> None:
        """Train until the length is reached, or a stop is requested."""
        with tracking(self._trackers):
            with self._bar.shown() if self._bar is not None else contextlib.nullcontext():
                self._loop.run()
            diverged_at = self._divergence.finish()
            settings = self.context._settings
            if settings.info is not None and settings.directory is not None and self.context.distributed.rank == 0:
                update_record(settings.directory, diverged_at=diverged_at)

    def _request_stop(self) -> None:
        self.context.set_stop_requested(True)

    def _samples(self) -> int | None:
        """Return the samples that all ranks have trained in this process; None when the trial cannot count them."""
        data = self._loop.data
        return None if data is None or data.samples is None else data.samples * self._strategy.shard.size

    def _sinks(self, policy: CheckpointPolicy) -> list[MetricsSink]:
        context = self.context
        if context.distributed.rank != 0:
            return []
        sinks: list[MetricsSink] = [*context._sinks, LoggingSink(self._throughput), self._divergence, *self._trackers]
        info, path = context._settings.info, context._settings.metrics_path
        if info is not None and (patience := info.run.fit.early_stopping) and policy.metric is not None:
            stop = self._request_stop
            sinks.append(EarlyStoppingSink(patience, policy.metric, policy.smaller_is_better, stop, path))
        if self._bar is not None:
            sinks.append(self._bar)
        if context._settings.metrics_path is not None:
            sinks.append(JsonLinesSink(context._settings.metrics_path, self._throughput, context._progress))
            if context.get_enable_tensorboard_logging():
                sinks.append(TensorBoardSink(context.get_tensorboard_writer(), context._progress))
        return sinks


class _PyTorchTrialController(TrialController):
    """The controller of a PyTorchTrial."""

    _strategy_class = PyTorchStrategy
