"""Steps of optimizers that compute the loss themselves, through a closure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from trial_runtime.errors import InvalidExperimentException
from trial_runtime.plain._agreement import mean_over_ranks
from trial_runtime.plain._rank_check import check_step


def step_with(engine: Any, closure: Callable[[], Any]) -> Any:
    """Have an engine's optimizer step with a closure, as often as it calls that, and return what its step does.

    ``engine.step()`` takes no closure. After each call all ranks have the mean of their gradients, and the optimizer
    gets the mean of their losses: LBFGS, which decides by both, moves the weights alike on all ranks. Gradients are
    neither clipped nor cleared. Collective.

    Args:
        engine: of ``deepspeed.initialize`` at ZeRO stage 0.
        closure: clears gradients, computes the loss, calls ``backward()`` and returns the loss.

    Raises:
        InvalidExperimentException: at ZeRO stages 1 to 3, which have no gradients that a closure could leave.
    """
    if stage := engine.zero_optimization_stage():
        raise InvalidExperimentException(
            f"step_with() requires ZeRO stage 0, and this engine has stage {stage}: the others keep no gradients in "
            "the parameters between the calls of a closure"
        )

    def averaged() -> Any:
        loss = closure()
        engine.allreduce_gradients()
        return mean_over_ranks(loss) if isinstance(loss, torch.Tensor | float) else loss

    engine.allreduce_gradients()  # those of a backward pass before: SAM moves the weights by them first
    before, engine._running_engine_step = engine._running_engine_step, True
    try:
        result = engine.optimizer.step(averaged)
    finally:
        engine._running_engine_step = before
    engine.global_steps += 1
    check_step(engine)
    return result
