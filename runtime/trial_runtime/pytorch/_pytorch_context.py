"""The context of a PyTorchTrial: models, optimizers, backward and step, which the trial calls itself."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel

from trial_runtime import core
from trial_runtime.errors import InternalException, InvalidExperimentException
from trial_runtime.pytorch._amp import autocast_forward
from trial_runtime.pytorch._context import TrialContext
from trial_runtime.pytorch._experimental_context import PyTorchExperimentalContext
from trial_runtime.pytorch._lr_scheduler import LRScheduler, check_plateau

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger("trial_runtime.pytorch")


class TransparentDDP(DistributedDataParallel):
    """DistributedDataParallel that has the attributes and methods of the model inside."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


class PyTorchTrialContext(TrialContext):
    """The context of a PyTorchTrial.

    ``init()`` makes it. A unit test may make one directly.

    Args:
        aggregation_frequency: batches an optimizer step, K.
        managed_training: False leaves wrapped models as and where they are, for a trial that is not trained.
        debug_enabled: accepted and not used.
        num_gpus: accepted and not used.

    The others are described at ``TrialContext``.

    Attributes:
        optimizers: wrapped optimizers, in the order they were wrapped.
        experimental: further switches.
    """

    def __init__(
        self,
        core_context: core.Context,
        trial_seed: int | None,
        hparams: dict[str, Any] | None,
        slots_per_trial: int,
        num_gpus: int,
        exp_conf: dict[str, Any] | None,
        aggregation_frequency: int,
        steps_completed: int,
        managed_training: bool,
        debug_enabled: bool,
        enable_tensorboard_logging: bool = True,
    ) -> None:
        del num_gpus, debug_enabled
        super().__init__(
            core_context, trial_seed, hparams, slots_per_trial, exp_conf, steps_completed, enable_tensorboard_logging
        )
        self.optimizers: list[torch.optim.Optimizer] = []
        self.experimental = PyTorchExperimentalContext(self)
        self._aggregation_frequency = aggregation_frequency
        info = self._settings.info
        self._average_default = info.run.average_aggregated_gradients if info is not None else True
        self._average: dict[torch.optim.Optimizer, bool] = {}
        self._managed_training = managed_training
        self._standalone = False
        self._scaler: Any = None

    @classmethod
    def _make(
        cls, run: core.Context, hparams: dict[str, Any] | None, exp_conf: dict[str, Any] | None, **own: Any
    ) -> Self:
        defaults = {"aggregation_frequency": 1, "managed_training": True, "debug_enabled": False}
        return super()._make(run, hparams, exp_conf, **{**defaults, **own})

    def _prepare_standalone(self) -> None:
        self._standalone = True

    def wrap_model(self, model: torch.nn.Module) -> torch.nn.Module:
        """Move a model to the device, share its gradients among the ranks, and save it with checkpoints.

        With several ranks the result is a DistributedDataParallel with the model's own attributes. A model without a
        parameter to train stays as it is.
        """
        wrapped = model
        if self._managed_training:
            wrapped = model.to(self.device)
            if self.distributed.size > 1 and any(p.requires_grad for p in model.parameters()):
                self.distributed.group()  # torch.distributed is up from here on
                wrapped = TransparentDDP(model)
            if self.experimental._auto_amp:
                wrapped = autocast_forward(wrapped, enabled=self.device.type == "cuda")
        self.models.append(wrapped)
        return wrapped

    def wrap_optimizer(
        self,
        optimizer: torch.optim.Optimizer,
        backward_passes_per_step: int = 1,
        fp16_compression: bool | None = None,
        average_aggregated_gradients: bool | None = None,
    ) -> torch.optim.Optimizer:
        """Register an optimizer, to be saved with checkpoints and stepped by :meth:`step_optimizer`.

        Args:
            optimizer: the optimizer; returned as it is.
            backward_passes_per_step: a setting of Horovod, without effect.
            fp16_compression: a setting of Horovod, without effect.
            average_aggregated_gradients: divide gradients by the aggregation frequency before a step; default True.

        Raises:
            InvalidExperimentException: when ``backward_passes_per_step`` is below 1.
        """
        if backward_passes_per_step < 1:
            raise InvalidExperimentException(
                f"backward_passes_per_step must be at least 1, got {backward_passes_per_step}."
            )
        if fp16_compression:
            logger.warning("wrap_optimizer(fp16_compression=True) is a setting of Horovod; it has no effect here.")
        average = self._average_default if average_aggregated_gradients is None else average_aggregated_gradients
        self._average[optimizer] = average
        self.optimizers.append(optimizer)
        return optimizer

    def wrap_lr_scheduler(self, lr_scheduler: Any, step_mode: LRScheduler.StepMode, frequency: int = 1) -> Any:
        """Register a scheduler, to be saved with checkpoints and stepped by the loop.

        Args:
            lr_scheduler: a torch scheduler of a wrapped optimizer.
            step_mode: when the loop steps it, or MANUAL_STEP: never.
            frequency: only at every n-th of these points.

        Returns:
            the scheduler.

        Raises:
            InvalidExperimentException: when its optimizer was not wrapped, or a ReduceLROnPlateau is not MANUAL_STEP.
        """
        check_plateau(lr_scheduler, step_mode)
        optimizer = getattr(lr_scheduler, "optimizer", None)
        if optimizer is not None and not any(optimizer is known for known in self.optimizers):
            raise InvalidExperimentException(
                "Must use an optimizer that is returned by wrap_optimizer(); wrap_lr_scheduler() was given a scheduler "
                "of another one."
            )
        self.lr_schedulers.append(LRScheduler(lr_scheduler, step_mode, frequency))
        return lr_scheduler

    def wrap_scaler(self, scaler: Any) -> Any:
        """Register the trial's own GradScaler, to be saved with checkpoints. Returns the scaler.

        Args:
            scaler: a ``torch.amp.GradScaler``; the trial scales losses with it and gives it to ``step_optimizer``.

        Raises:
            InvalidExperimentException: when called twice, or after :meth:`wrap_model`.
        """
        if self._scaler is not None:
            raise InvalidExperimentException("Please only call wrap_scaler or use_amp once.")
        if self.models:
            raise InvalidExperimentException("Please call wrap_scaler (or use_amp) before wrap_model.")
        self._scaler = scaler
        return scaler

    def configure_apex_amp(
        self,
        models: Any,
        optimizers: Any,
        enabled: bool | None = True,
        opt_level: str | None = "O1",
        cast_model_type: torch.dtype | None = None,
        patch_torch_functions: bool | None = None,
        keep_batchnorm_fp32: bool | str | None = None,
        master_weights: bool | None = None,
        loss_scale: float | str | None = None,
        cast_model_outputs: torch.dtype | None = None,
        num_losses: int | None = 1,
        verbosity: int | None = 1,
        min_loss_scale: float | None = None,
        max_loss_scale: float | None = 2.0**24,
    ) -> tuple[Any, Any]:
        """Refuse NVIDIA Apex; with ``enabled=False`` return ``models`` and ``optimizers`` as they are.

        Raises:
            InvalidExperimentException: when enabled.
        """
        del opt_level, cast_model_type, patch_torch_functions, keep_batchnorm_fp32, master_weights, loss_scale
        del cast_model_outputs, num_losses, verbosity, min_loss_scale, max_loss_scale
        if enabled and self._managed_training:
            raise InvalidExperimentException(
                "NVIDIA Apex is not supported. Use context.experimental.use_amp(), or torch.autocast and a GradScaler "
                "given to context.wrap_scaler()."
            )
        return models, optimizers

    def autocast_forward_pass(self, to_wrap: torch.nn.Module) -> torch.nn.Module:
        """Run a module's forward under autocast, with outputs in fp32; for trials that do not call ``use_amp()``.

        Args:
            to_wrap: the module; it is changed and returned.
        """
        return autocast_forward(to_wrap, enabled=self.device.type == "cuda")

    def backward(
        self,
        loss: torch.Tensor,
        gradient: torch.Tensor | None = None,
        retain_graph: bool = False,
        create_graph: bool = False,
    ) -> None:
        """Add the gradients of a loss; the ranks share them on the batches on which optimizers step.

        Args:
            loss: a scalar, or a tensor together with ``gradient``.
            gradient: as for ``torch.Tensor.backward``.
            retain_graph: likewise.
            create_graph: likewise.
        """
        scaled: Any = loss
        if self._scaler is not None and self.experimental._auto_amp:
            scaled = self._scaler.scale(loss)
        with contextlib.ExitStack() as stack:
            shared = [model for model in self.models if isinstance(model, DistributedDataParallel)]
            if shared and not self._should_step():
                for model in shared:
                    stack.enter_context(model.no_sync())
            scaled.backward(gradient=gradient, retain_graph=retain_graph, create_graph=create_graph)

    def step_optimizer(
        self,
        optimizer: torch.optim.Optimizer,
        clip_grads: Callable[[Iterator[torch.nn.Parameter]], Any] | None = None,
        auto_zero_grads: bool = True,
        scaler: Any = None,
    ) -> None:
        """Step an optimizer, on every ``aggregation_frequency``-th batch only.

        In this order: divide gradients by the aggregation frequency (if averaging), clip, step, zero.

        Args:
            optimizer: one that :meth:`wrap_optimizer` returned.
            clip_grads: called with the optimizer's parameters.
            auto_zero_grads: zero the gradients after the step.
            scaler: the GradScaler to step with, when the trial uses one itself.

        Raises:
            InvalidExperimentException: when gradients are to be kept although batches are aggregated.
        """
        if self._aggregation_frequency > 1 and not auto_zero_grads:
            raise InvalidExperimentException(
                f"step_optimizer(auto_zero_grads=False) cannot be used with an aggregation frequency above 1 (it is "
                f"{self._aggregation_frequency})."
            )
        if not self._should_step():
            return
        parameters: Any = [p for group in optimizer.param_groups for p in group.get("params", [])]
        if self._average[optimizer] and self._aggregation_frequency > 1:
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.data.div_(float(self._aggregation_frequency))
        if clip_grads is not None:
            if self._scaler is not None and self.experimental._auto_amp:
                self._scaler.unscale_(optimizer)
            clip_grads(parameters)
        if scaler is None and self.experimental._auto_amp:
            scaler = self._scaler
        if scaler is not None:
            scaler.step(optimizer)
        else:
            optimizer.step()
        if auto_zero_grads:
            optimizer.zero_grad()

    # The names that some of these had in 0.12.11 and 0.12.12.
    _Model = Model = wrap_model
    _Optimizer = Optimizer = wrap_optimizer
    _LRScheduler = wrap_lr_scheduler
    _configure_apex_amp = configure_apex_amp
    _backward = backward
    _step_optimizer = step_optimizer
    _to_device = TrialContext.to_device

    def _should_step(self) -> bool:
        """Return whether optimizers step on the current batch."""
        if not self._managed_training or (self._standalone and self._micro_idx is None):
            return True
        if self._micro_idx is None:
            raise InternalException("Training has not started.")
        return (self._micro_idx + 1) % self._aggregation_frequency == 0
