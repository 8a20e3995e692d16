"""Trials for the API before 0.13 under today's loop: they return model, optimizer and loss, and do not step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch

from trial_runtime.errors import InvalidExperimentException
from trial_runtime.pytorch._callback import PyTorchCallback
from trial_runtime.pytorch._lr_scheduler import LRScheduler
from trial_runtime.pytorch._pytorch_context import PyTorchTrialContext
from trial_runtime.pytorch._trial import PyTorchTrial

Clip = Callable[[Iterable[torch.nn.Parameter]], Any]
_HOOK = "on_before_optimizer_step"
_BY_HYPERPARAMETER: dict[str, Callable[..., Any]] = {
    "clip_grad_l2_norm": torch.nn.utils.clip_grad_norm_,
    "clip_grad_val": torch.nn.utils.clip_grad_value_,
}


class ClipGradsL2Norm(PyTorchCallback):
    """Callback of the API before 0.13: clips gradients to an L2 norm of ``clip_value`` before each step."""

    def __init__(self, clip_value: float) -> None:
        self._clip_value = clip_value

    def on_before_optimizer_step(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Clip the gradients."""
        torch.nn.utils.clip_grad_norm_(parameters, self._clip_value)


class ClipGradsL2Value(ClipGradsL2Norm):
    """Callback of the API before 0.13: clips each element of the gradients to ``clip_value`` before each step."""

    def on_before_optimizer_step(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Clip the gradients."""
        torch.nn.utils.clip_grad_value_(parameters, self._clip_value)


def is_old(trial_class: type) -> bool:
    """Return whether a PyTorchTrial is written for the API before 0.13."""
    made = all(callable(getattr(trial_class, name, None)) for name in ("build_model", "optimizer"))
    return made and "model" in inspect.signature(trial_class.train_batch).parameters  # type: ignore[attr-defined]


def for_todays_loop(trial_class: type[PyTorchTrial]) -> type[PyTorchTrial]:
    """Return the class for today's loop: itself or, for an old one, a subclass that wraps and steps."""
    if not is_old(trial_class):
        return trial_class
    body: dict[str, Any] = {name: getattr(trial_class, name) for name in ("__module__", "__qualname__", "__doc__")}
    for name in ("evaluate_batch", "evaluate_full_dataset"):  # the loop asks which of them a trial defines
        if getattr(trial_class, name) is not getattr(PyTorchTrial, name):
            body[name] = _with_model(name)
    return type(trial_class.__name__, (_OldTrial, trial_class), body)


def _with_model(name: str) -> Callable[..., Any]:
    def evaluate(self: _OldTrial, **given: Any) -> Any:
        method = getattr(super(_OldTrial, self), name)
        return method(**given, model=getattr(self, self._old_model))

    evaluate.__name__ = name
    if name == "evaluate_batch":  # it has no batch_idx
        evaluate.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(word, inspect.Parameter.POSITIONAL_OR_KEYWORD) for word in ("self", "batch")]
        )
    return evaluate


class _OldTrial(PyTorchTrial):
    """The part of an old trial that the harness had; the trial's own class comes behind it."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        super().__init__(context)  # type: ignore[safe-super]
        if not hasattr(self, "context"):
            self.context = context
        old: Any = self
        model = old.build_model()
        optimizer = old.optimizer(model)
        self._old_context = context
        self._old_model = "wrapped_model" if hasattr(self, "model") else "model"  # as ds-migrate calls it
        setattr(self, self._old_model, context.wrap_model(model))
        self._old_optimizer = context.wrap_optimizer(optimizer)
        self._old_callbacks: dict[str, PyTorchCallback] = {}
        schedule = getattr(old, "create_lr_scheduler", lambda _: None)(optimizer)
        if schedule is not None:
            context.wrap_lr_scheduler(schedule._scheduler, _step_mode(schedule))
        asked: Any = context
        asked.get_model = lambda: getattr(self, self._old_model)
        asked.get_optimizer = lambda: self._old_optimizer
        asked.get_lr_scheduler = lambda: schedule

    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        self._old_callbacks = super().build_callbacks()
        return self._old_callbacks

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        method: Any = super().train_batch  # type: ignore[safe-super]
        metrics = method(batch=batch, model=getattr(self, self._old_model), epoch_idx=epoch_idx, batch_idx=batch_idx)
        if not isinstance(metrics, dict):
            metrics = {"loss": metrics}
        if "loss" not in metrics:
            raise InvalidExperimentException('train_batch() must return its loss as "loss".')
        self._old_context.backward(metrics["loss"])
        self._old_context.step_optimizer(self._old_optimizer, clip_grads=self._clip())
        return metrics

    def _clip(self) -> Clip | None:
        """Return what clips: callbacks or, without one, a hyperparameter, as the harness to 0.12.6 did."""
        hooks = [getattr(c, _HOOK) for c in self._old_callbacks.values() if hasattr(c, _HOOK)]
        if hooks:
            return lambda parameters: [hook(parameters) for hook in hooks]
        hparams = self._old_context.get_hparams()
        given = [(clip, hparams[name]) for name, clip in _BY_HYPERPARAMETER.items() if hparams.get(name) is not None]
        if len(given) > 1:
            raise InvalidExperimentException("Give one of the hyperparameters clip_grad_l2_norm and clip_grad_val.")
        return (lambda parameters: given[0][0](parameters, given[0][1])) if given else None


def _step_mode(schedule: LRScheduler) -> LRScheduler.StepMode:
    """Return today's step mode: every batch meant every batch on which the optimizer steps."""
    mode = schedule._step_mode
    modes = LRScheduler.StepMode
    return modes.STEP_EVERY_OPTIMIZER_STEP if mode is modes.STEP_EVERY_BATCH else mode
