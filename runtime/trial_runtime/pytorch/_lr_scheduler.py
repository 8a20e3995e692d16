"""Learning rate schedulers, and when the loop steps them."""

from __future__ import annotations

import enum
from typing import Any

import torch

from trial_runtime.errors import InvalidExperimentException
from trial_runtime.pytorch._loop.progress import Progress


class LRScheduler:
    """A torch scheduler and when the training loop steps it.

    Args:
        scheduler: a scheduler of ``torch.optim.lr_scheduler`` (anything with ``step``, ``state_dict`` and
            ``load_state_dict``).
        step_mode: when to step it.
        frequency: step only at every n-th point of ``step_mode``.

    Raises:
        TypeError: when ``step_mode`` is no :class:`LRScheduler.StepMode`.
    """

    class StepMode(enum.Enum):
        """The times at which the loop steps a scheduler.

        Attributes:
            STEP_EVERY_EPOCH: after the last optimizer step of an epoch.
            STEP_EVERY_BATCH: once for each micro-batch, all of them right after the optimizer step.
            MANUAL_STEP: never; the trial calls ``step()``.
            STEP_EVERY_OPTIMIZER_STEP: after an optimizer step whose micro-batch count ``frequency`` divides.
        """

        STEP_EVERY_EPOCH = 1
        STEP_EVERY_BATCH = 2
        MANUAL_STEP = 3
        STEP_EVERY_OPTIMIZER_STEP = 4

    def __init__(self, scheduler: Any, step_mode: StepMode, frequency: int = 1) -> None:
        if not isinstance(step_mode, LRScheduler.StepMode):
            raise TypeError(f"step_mode must be an LRScheduler.StepMode. Got {type(step_mode)}.")
        self._scheduler = scheduler
        self._step_mode = step_mode
        self._frequency = frequency

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Step the scheduler."""
        self._scheduler.step(*args, **kwargs)

    def get_last_lr(self) -> list[float]:
        """Return the learning rate of each parameter group."""
        return list(self._scheduler.get_last_lr())

    def state_dict(self) -> dict[str, Any]:
        """Return the scheduler's state."""
        return dict(self._scheduler.state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state that :meth:`state_dict` gave."""
        self._scheduler.load_state_dict(state_dict)

    def steps_due(self, micro_idx: int, accumulation: int, progress: Progress) -> int:
        """Return how often to step after a micro-batch.

        Args:
            micro_idx: index of the micro-batch, counted from the start of training.
            accumulation: micro-batches an optimizer step, K.
            progress: knows which epoch a micro-batch belongs to.

        Returns:
            0 on every micro-batch without an optimizer step. The rule is PyTorchTrial's, which counts in micro-batches.
        """
        if (micro_idx + 1) % accumulation != 0:
            return 0
        every = self._frequency
        if self._step_mode is LRScheduler.StepMode.STEP_EVERY_BATCH:
            return (micro_idx + 1) // every - (micro_idx + 1 - accumulation) // every
        if self._step_mode is LRScheduler.StepMode.STEP_EVERY_OPTIMIZER_STEP:
            return int((micro_idx + 1) % every == 0)
        if self._step_mode is LRScheduler.StepMode.STEP_EVERY_EPOCH:
            # The epochs that end before the next optimizer step.
            now = progress.epoch_of_micro_batch(micro_idx)
            then = progress.epoch_of_micro_batch(micro_idx + accumulation)
            return then // every - now // every
        return 0


def check_plateau(lr_scheduler: Any, step_mode: LRScheduler.StepMode) -> None:
    """Refuse to step a ReduceLROnPlateau: only the trial knows its metric.

    Raises:
        InvalidExperimentException: when one is not MANUAL_STEP.
    """
    plateau = isinstance(lr_scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
    if plateau and step_mode is not LRScheduler.StepMode.MANUAL_STEP:
        raise InvalidExperimentException(
            "A ReduceLROnPlateau needs a metric, so it can only be wrapped with step_mode=MANUAL_STEP. Step it in a "
            "callback, for example: def on_validation_end(self, metrics): self.scheduler.step(metrics['loss'])."
        )
