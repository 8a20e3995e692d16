"""Scale losses in float16 by the scale that gradients are divided by again, and keep that scale in checkpoints."""

from __future__ import annotations

from typing import Any

import torch
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler

from trial_runtime.errors import InvalidExperimentException
from trial_runtime.pytorch.deepspeed._engine.accumulation import is_managed
from trial_runtime.pytorch.deepspeed._patches.patch import NewEngine, Patch


def apply(new: NewEngine) -> None:
    """Let a new engine scale its losses as torch's GradScaler does. Engines without float16 stay as they are.

    DeepSpeed does otherwise, silently:

    - ``fp16`` at ZeRO stage 0: ``backward()`` does not scale the loss, while ``step()`` divides gradients by the scale;
      they come out thousands of times too small.
    - ``fp16`` at every stage: the scale grows between the scaling of a loss and the division of its gradients, so that
      the gradients of that step are halved.
    - ``torch_autocast`` in float16 at stages 1 to 3: an overflow does not lower the scale, so all steps to come are
      skipped; gradients are clipped before they are divided; the scale is not in checkpoints.
    - ``torch_autocast`` in float16 at stage 0: the scale is not in checkpoints, skipped steps are not counted.

    Raises:
        InvalidExperimentException: when a loss could reach parameters of engines with different scales.
    """
    engine, optimizer = new.engine, new.engine.optimizer
    autocast = engine.torch_autocast_enabled() and engine.torch_autocast_dtype() == torch.float16
    if getattr(optimizer, "torch_autocast_gradscaler", None) is not None:
        optimizer.torch_autocast_gradscaler = None  # also one that another engine's autocast left behind
        if autocast:
            optimizer.loss_scaler = _make_torch_scaler()
            optimizer.dynamic_loss_scale = optimizer.check_grad_overflow = True
    elif autocast and engine.torch_autocast_z0_gradscaler is not None:
        engine.torch_autocast_z0_gradscaler = _SavedGradScaler(engine.torch_autocast_z0_gradscaler, optimizer)
    if engine.fp16_enabled() and int(engine.zero_optimization_stage()) == 0:
        engine.torch_autocast_z0_gradscaler = _OptimizerLossScaler(optimizer)
    if (engine.fp16_enabled() or autocast) and hasattr(optimizer, "_update_scale"):
        _GrowthAfterStep(optimizer)
    if new.engines:
        _check_one_scale([*new.engines, engine])


class _OptimizerLossScaler:
    """Stand-in for the GradScaler of stage 0, which scales losses for an optimizer that divides gradients itself."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = loss.float() * self.optimizer.loss_scale
        return scaled

    def unscale_(self, optimizer: Any) -> None:
        """Do nothing: the optimizer's step divides gradients."""

    def step(self, optimizer: Any) -> None:
        optimizer.step()

    def update(self) -> None:
        """Do nothing: the optimizer's step has updated the scale."""


class _SavedGradScaler:
    """GradScaler that is saved with its optimizer, and reports the steps that it skipped to DeepSpeed."""

    def __init__(self, scaler: Any, optimizer: torch.optim.Optimizer) -> None:
        self.scaler = scaler
        self.optimizer: Any = optimizer
        self.scale, self.unscale_, self.step = scaler.scale, scaler.unscale_, scaler.step
        optimizer.register_state_dict_post_hook(lambda _, state: state.update(grad_scaler=scaler.state_dict()))
        optimizer.register_load_state_dict_pre_hook(self._load)

    def update(self) -> None:
        scale = self.scaler.get_scale()
        self.scaler.update()
        self.optimizer.overflow = self.scaler.get_scale() < scale

    def _load(self, _: Any, state: dict[str, Any]) -> None:
        if "grad_scaler" in state:
            self.scaler.load_state_dict(state["grad_scaler"])


class _GrowthAfterStep:
    """Growth of an optimizer's loss scale after the step, not before gradients are divided by it."""

    def __init__(self, optimizer: Any) -> None:
        self._update, self._step = optimizer._update_scale, optimizer.step
        self._grows = False
        optimizer._update_scale, optimizer.step = self.update, self.step

    def update(self, overflow: bool = False) -> None:
        self._grows = not overflow
        if overflow:
            self._update(True)

    def step(self, *args: Any, **kwargs: Any) -> Any:
        self._grows = False
        result = self._step(*args, **kwargs)
        if self._grows:
            self._update(False)
        return result


def _make_torch_scaler() -> DynamicLossScaler:
    """Return a scaler that begins, grows and shrinks as torch's GradScaler does."""
    return DynamicLossScaler(
        init_scale=2.0**16,
        scale_window=2000,
        min_scale=1.0,
        delayed_shift=1,
        consecutive_hysteresis=False,
        raise_error_at_min_scale=False,
    )


def _check_one_scale(engines: list[Any]) -> None:
    """Refuse engines whose losses may reach each other's parameters, unless all have one scale that stays."""
    if all(is_managed(engine) for engine in engines):
        return  # each has separate losses
    scales = {_fixed_scale(engine) for engine in engines}
    if len(scales) > 1 or None in scales:
        raise InvalidExperimentException(
            'Several engines with "managed_gradient_accumulation": false in float16: a loss of one leaves gradients in '
            "parameters of another, scaled by the loss scale of the first, and these scales change by themselves. "
            'Write a fixed one into the DeepSpeed config of all of them, such as "fp16": {"enabled": true, '
            '"loss_scale": 1024}, or use "bf16": {"enabled": true}.'
        )


def _fixed_scale(engine: Any) -> float | None:
    """Return the loss scale of an engine, None when it changes."""
    if engine.torch_autocast_enabled() and engine.torch_autocast_dtype() == torch.float16:
        return None
    if not engine.fp16_enabled():
        return 1.0
    return None if engine.dynamic_loss_scale() else float(engine.loss_scale())


PATCH = Patch(
    "loss_scaling",
    "In float16 DeepSpeed scales losses and gradients differently, and loses the scale in checkpoints.",
    on_engine=apply,
)
