"""DeepSpeedTrial under the loop."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import deepspeed

from trial_runtime.errors import InvalidExperimentException
from trial_runtime.pytorch._checkpoints import restricted_load
from trial_runtime.pytorch._checkpoints.determined_format import state_file
from trial_runtime.pytorch._data.training_data import TrainingData
from trial_runtime.pytorch._loop.pytorch_strategy import gradients, restore_gradients
from trial_runtime.pytorch._loop.strategy import Shard, Strategy, accepts_parameter, overrides
from trial_runtime.pytorch._reporting.aggregation import as_dict
from trial_runtime.pytorch.deepspeed._checkpoints import compatibility
from trial_runtime.pytorch.deepspeed._checkpoints.reshard import loadable
from trial_runtime.pytorch.deepspeed._checkpoints.warm_start import load_weights
from trial_runtime.pytorch.deepspeed._context import DeepSpeedTrialContext
from trial_runtime.pytorch.deepspeed._engine.accumulation import is_managed
from trial_runtime.pytorch.deepspeed._engine.grad_norm import GradientNorms
from trial_runtime.pytorch.deepspeed._trial import DeepSpeedTrial

logger = logging.getLogger("trial_runtime.pytorch.deepspeed")


class DeepSpeedStrategy(Strategy):
    """A batch is ``gradient_accumulation_steps`` calls of ``train_batch``; every rank holds a part of the state."""

    context: DeepSpeedTrialContext

    def prepare(self) -> None:
        if not self.context.models:
            raise InvalidExperimentException(
                "Must have at least one model engine; the trial has no engine. Wrap one in its __init__: "
                "context.wrap_model_engine(engine)."
            )
        if not self.evaluates_batches and not overrides(self.trial.evaluate_full_dataset, DeepSpeedTrial):
            raise InvalidExperimentException(
                f"{type(self.trial).__name__} must define evaluate_batch() or evaluate_full_dataset()."
            )
        self.micro_batches = self.context.get_num_micro_batches_per_slot()
        once = self.context.use_pipeline_parallel or self.context._manual_grad_accumulation
        self._calls = 1 if once else self.micro_batches
        self._reports = self.shard.reports
        info = self.context._settings.info
        self._norms = GradientNorms(self.context.models) if info is not None and info.run.fit.log_grad_norm else None
        first = self.context.models[0]
        self._counts_steps = not isinstance(first, deepspeed.PipelineEngine) and is_managed(first)
        self._passes_batch_idx = self.evaluates_batches and accepts_parameter(self.trial.evaluate_batch, "batch_idx", 1)

    @property
    def shard(self) -> Shard:
        mpu = self.context._mpu
        return Shard(
            mpu.data_parallel_rank,
            mpu.data_parallel_world_size,
            loads=mpu.should_build_data_loader,
            reports=mpu.should_report_metrics,
        )

    @property
    def evaluates_batches(self) -> bool:
        return overrides(self.trial.evaluate_batch, DeepSpeedTrial)

    @property
    def evaluates_in_lockstep(self) -> bool:
        engines = self.context.models  # mixtures of experts send their inputs around
        return any(int(engine.zero_optimization_stage()) == 3 or engine.has_moe_layers for engine in engines)

    @property
    def averages_over_ranks(self) -> bool:
        return self.context.use_pipeline_parallel

    def train_batch(self, data: TrainingData | None) -> list[dict[str, Any]]:
        context, progress = self.context, self.context._progress
        micro_steps = context.models[0].micro_steps
        every = []
        for call in range(self._calls):
            # The last micro-batch of this call: all of them in one call, or one in each.
            micro_idx = progress.batches * self.micro_batches + (call if self._calls > 1 else self.micro_batches - 1)
            context._micro_idx = micro_idx
            metrics = self.trial.train_batch(data, progress.epoch_of_micro_batch(micro_idx), progress.batches)
            if self._reports:
                every.append(as_dict(metrics, "train_batch()"))
            for scheduler in context.lr_schedulers:
                for _ in range(scheduler.steps_due(micro_idx, self.micro_batches, progress)):
                    scheduler.step()
        self._check_steps(context.models[0].micro_steps - micro_steps)
        if self._norms is not None and every:
            every[-1] = {**self._norms.metrics(), **every[-1]}  # the trial's own metric of this name wins
        return every

    def _check_steps(self, micro_steps: int) -> None:
        """Refuse a batch that left the first engine in the middle of an accumulation.

        Raises:
            AssertionError: as Determined did.
        """
        if not self._counts_steps:
            return
        if self._calls > 1 and micro_steps == self.micro_batches**2:
            raise InvalidExperimentException(
                f"train_batch() called engine.step() {self.micro_batches} times in each of its {self._calls} calls a "
                f"batch, so a batch took {micro_steps} micro-batches instead of {self.micro_batches} "
                "(gradient_accumulation_steps). Train one micro-batch a call, or call "
                "context.disable_auto_grad_accumulation() in the trial's __init__."
            )
        if micro_steps % self.micro_batches != 0:
            raise AssertionError(
                f"train_batch() did not train for gradient accumulation steps: engine.step() ran {micro_steps} times "
                f"in a batch of {self.micro_batches} micro-batches (gradient_accumulation_steps). Call engine.step() "
                "once for each micro-batch, not only at the boundary."
            )

    def evaluate_batch(self, data: Any, batch_idx: int) -> Any:
        if self._passes_batch_idx:
            return self.trial.evaluate_batch(data, batch_idx)
        return self.trial.evaluate_batch(data)

    def evaluation_batches(self, length: int) -> int:
        if not self.context.use_pipeline_parallel:
            return length
        calls, left = divmod(length, self.micro_batches)
        if calls == 0:
            raise InvalidExperimentException(
                "Number of train micro batches in validation data loader should not be less than the number of "
                f"gradient accumulation steps when using pipeline parallelism: the loader has {length}, and one "
                f"eval_batch() of the pipeline takes {self.micro_batches}."
            )
        if left and self.context.distributed.rank == 0:
            logger.warning(f"The last {left} validation micro-batches do not fill a pipeline batch; they are left out.")
        return calls

    def skipped_steps(self) -> int:
        return sum(int(engine.skipped_steps) for engine in self.context.models)

    def share_buffers(self) -> None:
        for sync in self.context._buffer_syncs.values():
            sync.now()

    def checkpoint_state(self) -> dict[str, Any]:
        return {"lr_schedulers_state_dict": [scheduler.state_dict() for scheduler in self.context.lr_schedulers]}

    def save(self, path: Path, checkpoint: dict[str, Any]) -> None:
        del checkpoint
        self.trial.save(self.context, path)

    def read(self, path: Path) -> dict[str, Any]:
        raise NotImplementedError("a DeepSpeedTrial's state is read by every rank")

    def load(self, path: Path, checkpoint: dict[str, Any]) -> None:
        if not overrides(self.trial.load, DeepSpeedTrial):
            compatibility.check(path, self.context.models, self.context.distributed)
        with loadable(path, self.context.models, self.context.distributed, self.has_shared_disk) as own:
            self.trial.load(self.context, own)
        for scheduler, state in zip(
            self.context.lr_schedulers, checkpoint.get("lr_schedulers_state_dict", ()), strict=False
        ):
            scheduler.load_state_dict(state)

    def is_warm_start(self, path: Path) -> bool:
        return state_file(path) is not None and not any(path.glob("model*"))

    def warm_start(self, path: Path) -> None:
        file = state_file(path)
        assert file is not None
        load_weights(restricted_load.read(file)["models_state_dict"], self.context.models)
        logger.info(f"Started with the weights of the PyTorchTrial checkpoint {path.name}; optimizers start fresh.")

    def rank_state(self) -> dict[str, Any]:
        """Return gradients left for a later step (a loss reached another engine). Buffers are rank 0's after a restart,
        as Determined and DeepSpeed's checkpoints have them."""
        return {"gradients": [gradients(engine.module) for engine in self.context.models]}

    def load_rank_state(self, state: dict[str, Any]) -> None:
        for engine, saved in zip(self.context.models, state.get("gradients", ()), strict=False):
            restore_gradients(engine.module, saved)
