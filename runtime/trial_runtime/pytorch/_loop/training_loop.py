"""The training loop: the only one, for every kind of trial."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import logging
import sys
from collections.abc import Sequence
from typing import Any

import torch

from trial_runtime.errors import InvalidHP
from trial_runtime.pytorch._callback import warn_about_deprecated_hooks
from trial_runtime.pytorch._checkpoints.policy import CheckpointPolicy
from trial_runtime.pytorch._checkpoints.restored import Restored
from trial_runtime.pytorch._checkpoints.run_state import RunCheckpointer
from trial_runtime.pytorch._data.training_data import TrainingData, check_epoch_length, check_loader
from trial_runtime.pytorch._loop.interruption import Interruption
from trial_runtime.pytorch._loop.profiling import make_profiler
from trial_runtime.pytorch._loop.strategy import Strategy
from trial_runtime.pytorch._loop.throughput import Throughput
from trial_runtime.pytorch._loop.validation import Validation
from trial_runtime.pytorch._reporting.aggregation import (
    average_over_batches,
    average_over_ranks,
    to_numpy,
    without_mean,
)
from trial_runtime.pytorch._train_units import Batch, TrainUnit

logger = logging.getLogger("trial_runtime.pytorch")


@dataclasses.dataclass(frozen=True)
class FitPlan:
    """Arguments of ``fit()``, checked.

    Attributes:
        length: how long to train, counted from the start of training, over all resumes.
        validation_period, checkpoint_period, reporting_period: when; None: only at the end.
        checkpoint_policy: which validations a checkpoint follows.
        latest_checkpoint: where to start from, a path or a name in the store.
        step_zero_validation: validate before the first batch.
        test_mode: one batch, one validation batch, a checkpoint.
        validate_only: validate once, where training would continue, and leave.
        profiled_batches: indices of the first and the last batch to profile; None: what the trial's own profiler does.
    """

    length: TrainUnit
    validation_period: TrainUnit | None
    checkpoint_period: TrainUnit | None
    reporting_period: TrainUnit | None
    checkpoint_policy: CheckpointPolicy
    latest_checkpoint: str | None = None
    step_zero_validation: bool = False
    test_mode: bool = False
    validate_only: bool = False
    profiled_batches: Sequence[int] | None = None


class TrainingLoop:
    """The loop that trains a trial; see :meth:`run`."""

    def __init__(
        self, strategy: Strategy, plan: FitPlan, checkpointer: RunCheckpointer, throughput: Throughput
    ) -> None:
        self.strategy = strategy
        self.throughput = throughput
        self.plan = plan
        self.checkpointer = checkpointer
        self.context = strategy.context
        self.progress = strategy.context._progress
        self.data: TrainingData | None = None
        self.validation: Validation
        self.interruption: Interruption
        self._periods = (plan.reporting_period, plan.validation_period, plan.checkpoint_period)
        self._batch_metrics: list[dict[str, Any]] = []
        self._starts_interval = True
        self._profiler: Any = None
        self._without_mean: set[str] = set()  # metrics that were warned of

    def run(self) -> None:
        """Train until the length is reached or a stop is requested.

        After a signal it ends with SystemExit: 143 for SIGTERM, 130 for SIGINT, 138 for SIGUSR1, 140 for SIGUSR2.

        ::

            on_trial_startup
            build_training_data_loader
            build_validation_data_loader
            if there is a checkpoint to start from:
                on_checkpoint_load_start
                load models, optimizers, schedulers, random generators
                load_state_dict
            on_training_start
            validate, if asked to before the first batch
            until the length is reached:
                if an epoch begins: on_training_epoch_start
                train_batch                   # a DeepSpeedTrial's: once for each micro-batch
                step schedulers
                if an epoch ends: on_training_epoch_end
                if a report, a validation, a checkpoint or the end is due:
                    report training metrics
                    on_training_workload_end
                    if the commit in progress has ended: report it (*)
                    if a validation is due:
                        on_validation_start
                        on_validation_epoch_start
                        evaluate_batch        # for each batch; or evaluate_full_dataset, without the epoch hooks
                        on_validation_epoch_end
                        on_validation_end
                        report validation metrics
                    if a checkpoint is due (a period, or the policy after a validation):
                        wait for the commit in progress (*)
                        state_dict
                        on_checkpoint_save_start
                        save models, optimizers, schedulers, random generators, position
                        on_checkpoint_end
                        on_checkpoint_write_end
                        commit, in a thread, while training continues
                    if any rank requested a stop, or got a signal to end: leave
            validate and checkpoint, where not current; after a stop only checkpoint
            wait for the commit in progress
            on_checkpoint_upload_end          # (*) once a checkpoint; there at the latest
            on_trial_shutdown                 # also after an error; last callback first
        """
        with contextlib.ExitStack() as shutdown:
            self._start(shutdown)
            if self.plan.validate_only:
                self._validate(first=True)
                return
            self._resolve_length()
            if self.plan.step_zero_validation and self.progress.batches == 0:
                self._validate(first=True)
            try:
                while not self.progress.reached(self.plan.length):
                    self._train_batch()
                    signalled = self.interruption.should_stop(self.progress.batches)
                    if not (signalled or self._is_boundary()):
                        continue
                    self._report()
                    self.checkpointer.finish_commit(wait=False)
                    if self.progress.due(self.plan.validation_period):
                        self._validate()
                    if self.progress.due(self.plan.checkpoint_period):
                        self._checkpoint()
                    if signalled or self._should_stop_at_report():
                        break
                else:
                    self._validate()
            except InvalidHP:
                self._checkpoint()
                self.checkpointer.finish()
                raise
            self._checkpoint()
            self.checkpointer.finish()
        if self.interruption.exit_code:
            raise SystemExit(self.interruption.exit_code)

    def _start(self, shutdown: contextlib.ExitStack) -> None:
        strategy, context = self.strategy, self.context
        strategy.callbacks = strategy.trial.build_callbacks()
        for callback in strategy.callbacks.values():
            warn_about_deprecated_hooks(callback)
        strategy.prepare()
        restored = self.checkpointer.find(self.plan.latest_checkpoint)
        if restored is not None:
            self.progress.load_state_dict(restored.progress)
        context._initial_batch = self.progress.batches
        self.progress.micro_batches = strategy.micro_batches
        for callback in strategy.callbacks.values():
            callback.on_trial_startup(self.progress.batches, restored.name if restored else None)
            shutdown.callback(callback.on_trial_shutdown)
        shutdown.callback(self.checkpointer.close)
        self._build_data(restored)
        if self.data is not None:
            # Before the generators are restored: making an iterator draws from them.
            self.data.open()
            shutdown.callback(self.data.close)
        if restored is not None:
            self.checkpointer.restore(restored)
        context._training = True
        self.interruption = shutdown.enter_context(Interruption(context.distributed, self.progress.batches))
        self._call("on_training_start")
        self._profiler = context.profiler
        if self._profiler is None and self.plan.profiled_batches is not None:
            self._profiler = make_profiler(
                self.plan.profiled_batches,
                self.progress.batches,
                context.get_tensorboard_path(),
                context.distributed.rank,
            )
        if self._profiler is not None:
            shutdown.enter_context(self._profiler)

    def _resolve_length(self) -> None:
        """Extend a test by one batch when it starts from a checkpoint; warn when the length is reached already."""
        progress = self.progress
        if self.plan.test_mode:
            self.plan = dataclasses.replace(self.plan, length=Batch(progress.batches + 1))
            self.throughput.length = self.plan.length
        elif progress.batches and progress.reached(self.plan.length) and self.context.distributed.rank == 0:
            done = f"{progress.batches} batches, {progress.epochs} epochs"
            length = self.plan.length
            logger.warning(
                f"Nothing to train: {done} are done, and {length.value} {length.unit} are asked for. "
                "Lengths count from the start of training, over all resumes; to train further, give a larger one "
                f"(ds-train: --config searcher.max_length.{length.unit}=N)."
            )

    def _build_data(self, restored: Restored | None) -> None:
        strategy, shard = self.strategy, self.strategy.shard
        lengths: list[int | None] = []
        if shard.loads:
            loader = strategy.trial.build_training_data_loader()
            check_loader(
                loader,
                "build_training_data_loader",
                self.context._data_repro_checks_disabled,
                strategy.disable_checks_call,
            )
            position = restored.data_position(shard.size, strategy.micro_batches) if restored else None
            self.data = TrainingData(loader, shard.size, shard.rank, position, strategy.trial.get_batch_length)
            lengths = [self.data.length]
        self.validation = Validation(strategy, test_mode=self.plan.test_mode)
        known = [length for rank in self.context.distributed.allgather(lengths) for length in rank]
        self.progress.epoch_length = known[0] if known else None
        length = self.progress.epoch_length
        self.context._epoch_len = sys.maxsize if length is None else length // strategy.micro_batches
        self.checkpointer.data = self.data
        if self.progress.epoch_length is not None:
            check_epoch_length(self.progress.epoch_length, strategy.micro_batches)

    def _train_batch(self) -> None:
        progress = self.progress
        if self._starts_interval:
            self.strategy.train_mode()
            self.context.reset_reducers()
            self.throughput.begin(self.strategy.skipped_steps())
            self._starts_interval = False
        if progress.at_epoch_start:
            self.context._micro_idx = progress.batches * progress.micro_batches  # the hook is in the new batch
            self._epoch_start(progress.epoch_of(progress.batches))
        self._batch_metrics += self.strategy.train_batch(self.data)
        if self._profiler is not None:
            self._profiler.step()
        progress.batches += 1
        if progress.at_epoch_end:
            self._call("on_training_epoch_end", progress.epoch_of(progress.batches - 1))

    def _is_boundary(self) -> bool:
        """Return whether something is due after this batch."""
        progress = self.progress
        return progress.reached(self.plan.length) or any(progress.due(period) for period in self._periods)

    def _report(self) -> None:
        progress, context = self.progress, self.context
        mine = [to_numpy(metrics) for metrics in self._batch_metrics]
        gathered = context.distributed.allgather((self.strategy.shard.reports, mine))
        self.throughput.report(self.strategy.skipped_steps())
        batch_metrics = average_over_ranks([metrics for reports, metrics in gathered if reports])
        averages: dict[str, Any] = dict(average_over_batches(batch_metrics))
        self._warn_of_no_numbers(batch_metrics, averages)
        averages.update(to_numpy(context.reduce_metrics(for_training=True)))
        averages.setdefault("batches", progress.batches)
        averages.setdefault("epochs", progress.epochs)
        self._batch_metrics, self._starts_interval = [], True
        for sink in self.checkpointer.sinks:
            sink.on_training_metrics(progress.batches, averages, batch_metrics)
        for callback in self.strategy.callbacks.values():
            callback.on_training_workload_end(avg_metrics=averages, batch_metrics=batch_metrics)
        progress.last_report = progress.batches

    def _warn_of_no_numbers(self, batch_metrics: list[dict[str, Any]], averages: dict[str, Any]) -> None:
        """Warn once of each training metric that has values but no mean."""
        if self.context.distributed.rank > 0 or None not in averages.values():
            return
        for name, kind in without_mean(batch_metrics).items():
            if name not in self._without_mean:
                self._without_mean.add(name)
                logger.warning(
                    f"The training metric {name!r} is of the type {kind}, no number: its mean is reported as null. "
                    "Return numbers or tensors from train_batch()."
                )

    def _validate(self, first: bool = False) -> None:
        progress = self.progress
        if progress.last_validation == progress.batches and not first:
            return
        self._starts_interval = True
        self.throughput.phase = "validating"
        with torch.no_grad():
            metrics = self.validation.run()
        progress.last_validation = progress.batches
        reported = {"batches": progress.batches, "epochs": progress.epochs, **metrics}
        for sink in self.checkpointer.sinks:
            sink.on_validation_metrics(progress.batches, reported)
        # The checkpoint of a run that was stopped before this validation lacks its metric, and what it drew at random.
        # One that a period asks for is saved before the last validation in a run that nothing stops, too.
        is_resumed = progress.last_checkpoint == progress.batches == self.context._initial_batch
        is_wanted = self.plan.checkpoint_policy.wants(metrics)
        if is_resumed and not first and not progress.due(self.plan.checkpoint_period):
            self._save()
        elif is_wanted and not first:
            self._checkpoint()

    def _checkpoint(self) -> None:
        if self.progress.last_checkpoint != self.progress.batches:
            self._save()

    def _save(self) -> None:
        self.throughput.phase, former = "saving", self.throughput.phase
        self.checkpointer.save()
        self.throughput.phase = former

    def _should_stop_at_report(self) -> bool:
        return self.interruption.should_stop(self.progress.batches, self.context.get_stop_requested(), now=True)

    def _epoch_start(self, epoch_idx: int) -> None:
        for callback in self.strategy.callbacks.values():
            if inspect.signature(callback.on_training_epoch_start).parameters:
                callback.on_training_epoch_start(epoch_idx)
            else:
                logger.warning("on_training_epoch_start() without epoch_idx is deprecated; add the parameter.")
                callback.on_training_epoch_start()  # type: ignore[call-arg]

    def _call(self, hook: str, *args: Any) -> None:
        for callback in self.strategy.callbacks.values():
            getattr(callback, hook)(*args)
