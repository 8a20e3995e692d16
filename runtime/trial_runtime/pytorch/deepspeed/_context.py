"""The context of a DeepSpeedTrial: its engines, and what the loop guarantees around them."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

import deepspeed
import torch

from trial_runtime import core
from trial_runtime.errors import (
    InvalidDeepSpeedConfigException,
    InvalidExperimentException,
)
from trial_runtime.pytorch import _ddp_buffers
from trial_runtime.pytorch._context import TrialContext, deprecated
from trial_runtime.pytorch._lr_scheduler import LRScheduler, check_plateau
from trial_runtime.pytorch.deepspeed import _config_lengths
from trial_runtime.pytorch.deepspeed._engine import engine_setup, initialize
from trial_runtime.pytorch.deepspeed._engine.accumulation import is_managed
from trial_runtime.pytorch.deepspeed._engine.collection import Engines
from trial_runtime.pytorch.deepspeed._engine.float32_boundary import float32_outside
from trial_runtime.pytorch.deepspeed._engine.module import EngineModule
from trial_runtime.pytorch.deepspeed._mpu import (
    ModelParallelUnit,
    make_data_parallel_mpu,
    make_deepspeed_mpu,
    make_engine_mpu,
)
from trial_runtime.pytorch.deepspeed._patches import apply_to_engine
from trial_runtime.pytorch.deepspeed._patches.patch import NewEngine

logger = logging.getLogger("trial_runtime.pytorch.deepspeed")


class DeepSpeedTrialContext(TrialContext):
    """The context of a DeepSpeedTrial. ``models`` are the wrapped engines.

    ``init()`` makes it. A unit test may make one directly; the arguments are described at :class:`TrialContext`.
    """

    def __init__(
        self,
        core_context: core.Context,
        trial_seed: int | None,
        hparams: dict[str, Any] | None,
        slots_per_trial: int,
        num_gpus: int,
        exp_conf: dict[str, Any] | None,
        steps_completed: int,
        enable_tensorboard_logging: bool = True,
    ) -> None:
        del num_gpus
        super().__init__(
            core_context, trial_seed, hparams, slots_per_trial, exp_conf, steps_completed, enable_tensorboard_logging
        )
        self._mpu = make_data_parallel_mpu(self.distributed)
        self._called_set_mpu = False
        self._use_pipeline_parallel = False
        self._manual_grad_accumulation = False
        self._train_micro_batch_size_per_gpu: int | None = None
        self._num_micro_batches_per_slot: int | None = None
        self._buffer_syncs: dict[int, _ddp_buffers.BufferSync] = {}
        self._warned_of_clipping = False
        self._engines: Engines | None = None
        self._standalone = contextlib.ExitStack()

    def _prepare_standalone(self) -> None:
        self._standalone.enter_context(engine_setup.started(self.distributed))

    def _close(self) -> None:
        super()._close()
        self._standalone.close()

    def wrap_model_engine(self, model: Any) -> Any:
        """Register an engine, to be switched between training and evaluation and saved with checkpoints.

        The first engine's micro-batch size and gradient accumulation steps are those of the loop, and so is its layout
        of ranks. Rank 0's buffers are given to all ranks here, and before forwards as DistributedDataParallel would.

        Args:
            model: the engine, the first item of what ``deepspeed.initialize`` returned.

        Returns:
            the engine.

        Raises:
            TypeError: when ``model`` is no engine.
            InvalidDeepSpeedConfigException: when its config gives wrong results, or is one that the runtime cannot use.
        """
        if isinstance(model, tuple):
            raise TypeError(
                "wrap_model_engine() was given a tuple. deepspeed.initialize() returns (engine, optimizer, dataloader, "
                "lr_scheduler): write `engine, optimizer, _, _ = deepspeed.initialize(...)` and wrap the engine."
            )
        if not isinstance(model, deepspeed.DeepSpeedEngine):
            raise TypeError(
                f"wrap_model_engine() takes an engine made by deepspeed.initialize(), got {type(model).__name__}."
            )
        self._check(model)
        self._apply_precision(model)
        if isinstance(model, deepspeed.PipelineEngine):
            self._use_pipeline_parallel = True
            if not self.models:
                self._mpu = make_deepspeed_mpu(model.mpu)
            else:
                logger.warning("Several engines: the layout of ranks is that of the first wrapped engine.")
        else:
            if not self.models and int(model.dp_world_size) < self.distributed.size:
                self._mpu = make_engine_mpu(model)
            self._share_buffers(model)
        micro, steps = int(model.train_micro_batch_size_per_gpu()), int(model.gradient_accumulation_steps())
        if not self.models:
            self._train_micro_batch_size_per_gpu, self._num_micro_batches_per_slot = micro, steps
        elif (micro, steps) != (self._train_micro_batch_size_per_gpu, self._num_micro_batches_per_slot):
            logger.warning(
                f"Engine {len(self.models)} has micro-batch size {micro} and {steps} gradient accumulation steps; the "
                f"loop goes by the first engine's: {self._train_micro_batch_size_per_gpu} and "
                f"{self._num_micro_batches_per_slot}."
            )
        apply_to_engine(NewEngine(model, self.models, self.distributed))
        self.models.append(model)
        return model

    def _check(self, engine: Any) -> None:
        initialize.check_engine(engine)
        config = engine._config._param_dict
        if "gradient_clipping" not in config and not self._warned_of_clipping and self.distributed.rank == 0:
            self._warned_of_clipping = True
            logger.warning(
                'The DeepSpeed config has no "gradient_clipping". Since DeepSpeed 0.19.3 its default is 1.0: gradients '
                f'are clipped at norm {engine.gradient_clipping()}. Write "gradient_clipping": 0.0 for no clipping.'
            )

    def _apply_precision(self, engine: Any) -> None:
        """Have an engine compute in what ``ds-train --precision`` asks for, and the code around it in float32."""
        asked = None if self._settings.info is None else self._settings.info.run.precision
        if asked is None:
            return
        has = "bf16" if engine.bfloat16_enabled() else "fp16" if engine.fp16_enabled() else "fp32"
        if has != asked:
            raise InvalidDeepSpeedConfigException(
                f"--precision {asked}: the engine computes in {has}: the trial does not read the hyperparameter "
                "overwrite_deepspeed_args, or changes it. Write the precision in the trial's DeepSpeed config."
            )
        if asked != "fp32" and isinstance(engine.module, EngineModule):
            raise InvalidDeepSpeedConfigException(
                f"--precision {asked}: this trial calls its models directly, not through an engine, which is what "
                "would change the precision. Use torch.autocast around its forwards."
            )
        float32_outside(engine)

    def _share_buffers(self, engine: Any) -> None:
        """Start from rank 0's state on every rank, and keep its buffers as DistributedDataParallel would."""
        if self.distributed.size == 1:
            return
        module, group = engine.module, engine.data_parallel_group
        models = [module]
        if isinstance(module, EngineModule):
            models = list(module.children())
            stepped = {id(p) for p in module.parameters()}
            _ddp_buffers.broadcast([p.data for p in module.all_parameters() if id(p) not in stepped], group)
        _ddp_buffers.broadcast(list(module.buffers()), group)
        if self._settings.info is not None and self._settings.info.run.launch_layer == "horovod":
            return
        for model in models:
            if id(model) not in self._buffer_syncs and _ddp_buffers.BufferSync.needed(model):
                self._buffer_syncs[id(model)] = _ddp_buffers.BufferSync(model, group)

    def get_experiment_config(self, in_micro_batches: bool = False) -> dict[str, Any]:
        """Return the experiment config.

        Args:
            in_micro_batches: give lengths in batches as they were before ds-migrate divided them by the accumulation
                steps, for a trial that computes with them.

        Raises:
            ValueError: when none was given.
        """
        config = super().get_experiment_config()
        return _config_lengths.in_micro_batches(config) if in_micro_batches else config

    @property
    def engines(self) -> Engines:
        """Engines by their optimizers, for trials that make those in loops, branches or helpers."""
        if self._engines is None:
            self._engines = Engines(self)
        return self._engines

    def set_mpu(self, mpu: ModelParallelUnit) -> None:
        """Use a layout of ranks of your own, for model parallelism outside of DeepSpeed. After the first engine.

        Raises:
            InvalidExperimentException: when no engine was wrapped, or a layout was set before.
        """
        if not self.models:
            raise InvalidExperimentException("Please call `wrap_model_engine` before setting the mpu.")
        if self._called_set_mpu:
            raise InvalidExperimentException(
                "Only one MPU can be passed to DeepSpeedTrialContext: call set_mpu() once."
            )
        self._called_set_mpu = True
        self._mpu = mpu

    def wrap_lr_scheduler(self, lr_scheduler: Any, step_mode: LRScheduler.StepMode, frequency: int = 1) -> Any:
        """Register a scheduler of a raw optimizer, to be saved with checkpoints and stepped by the loop.

        It is stepped as under a PyTorchTrial with the same data and accumulation. Do not give it to
        ``deepspeed.initialize`` too.

        Returns:
            the scheduler.

        Raises:
            InvalidExperimentException: when a ReduceLROnPlateau is not MANUAL_STEP.
        """
        check_plateau(lr_scheduler, step_mode)
        self.lr_schedulers.append(LRScheduler(lr_scheduler, step_mode, frequency))
        return lr_scheduler

    def disable_auto_grad_accumulation(self) -> None:
        """Call ``train_batch`` once a batch; the trial trains all micro-batches of it itself."""
        self._manual_grad_accumulation = True

    def is_gradient_accumulation_boundary(self) -> bool:
        """Return whether optimizers step on the micro-batch that is being trained; False outside of training.

        For engines with ``"managed_gradient_accumulation": false``: call ``step()`` then only.
        """
        if not self._training or self._micro_idx is None:
            return False
        if self._manual_grad_accumulation and is_managed(self.models[0]):
            return bool(self.models[0].is_gradient_accumulation_boundary())
        return (self._micro_idx + 1) % self.get_num_micro_batches_per_slot() == 0

    def get_micro_batch_idx(self) -> int:
        """Return the index of the micro-batch that is being trained, from the start of training; between micro-batches,
        of the latest; 0 outside of training.

        It is what PyTorchTrial passes as ``batch_idx``: here, that counts optimizer steps.
        """
        if not self._training:
            return 0
        return self._position().batches * self._progress.micro_batches if self._micro_idx is None else self._micro_idx

    def average_gradients(self, engine: Any) -> None:
        """Divide the gradients of an engine's parameters by the accumulation steps, before ``engine.step()``.

        For trials that look at gradients between backward and step, where PyTorchTrial still had the sums over the
        micro-batches: with ``engine.backward(loss, scale_wrt_gas=False)`` they are sums here too. ZeRO stage 0 only:
        other stages keep their gradients elsewhere.
        """
        steps = engine.gradient_accumulation_steps()
        for parameter in engine.module.parameters():
            if parameter.grad is not None and steps > 1:
                parameter.grad.div_(steps)

    @property
    def use_pipeline_parallel(self) -> bool:
        """True when a pipeline engine was wrapped."""
        return self._use_pipeline_parallel

    def get_train_micro_batch_size_per_gpu(self) -> int:
        """Return the samples a micro-batch and rank, of the first engine."""
        if self._train_micro_batch_size_per_gpu is None:
            raise InvalidExperimentException("Call wrap_model_engine() first; the engine knows the micro-batch size.")
        return self._train_micro_batch_size_per_gpu

    def get_num_micro_batches_per_slot(self) -> int:
        """Return the micro-batches an optimizer step, of the first engine."""
        if self._num_micro_batches_per_slot is None:
            raise InvalidExperimentException("Call wrap_model_engine() first; the engine knows the accumulation steps.")
        return self._num_micro_batches_per_slot

    @property
    def train_micro_batch_size_per_gpu(self) -> int:
        """Deprecated spelling."""
        deprecated("context.train_micro_batch_size_per_gpu", "context.get_train_micro_batch_size_per_gpu()")
        return self.get_train_micro_batch_size_per_gpu()

    @property
    def num_micro_batches_per_slot(self) -> int:
        """Deprecated spelling."""
        deprecated("context.num_micro_batches_per_slot", "context.get_num_micro_batches_per_slot()")
        return self.get_num_micro_batches_per_slot()


def full_state_dict(engine: Any) -> dict[str, torch.Tensor]:
    """Return the state of an engine's module, parameters and buffers, on the host. Stages 0 to 2."""
    return {name: value.detach().cpu().clone() for name, value in engine.module.state_dict().items()}
