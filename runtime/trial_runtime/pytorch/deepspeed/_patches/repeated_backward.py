"""Refuse a second ``backward()`` that would lose the gradients of the first."""

from __future__ import annotations

from typing import Any

from trial_runtime.errors import InvalidExperimentException
from trial_runtime.pytorch.deepspeed._engine.accumulation import is_managed
from trial_runtime.pytorch.deepspeed._patches.patch import NewEngine, Patch


def apply(new: NewEngine) -> None:
    """Let the engine refuse a second backward before its step, where DeepSpeed keeps the last one's gradients only.

    That is at ZeRO stages 1 and 2, unless ``step()`` alone counts micro-batches, the trial sets the boundary itself, or
    it has gradients coalesced.
    """
    engine, stage, index = new.engine, new.stage, len(new.engines)  # new itself would keep all engines before
    if new.is_pipeline or stage not in (1, 2) or not is_managed(engine):
        return
    original_backward, original_step = engine.backward, engine.step
    calls = 0

    def backward(loss: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        kept = engine._is_gradient_accumulation_boundary is not None or engine.inside_no_sync_ctxt
        if calls > 1 and not kept:
            raise InvalidExperimentException(
                f"Engine {index}: backward() was called {calls} times before step(), at ZeRO stage {stage}, where "
                "DeepSpeed keeps only the last call's gradients. Add the losses and call backward() once, or put "
                '"managed_gradient_accumulation": false into the DeepSpeed config and call step() when the optimizer '
                "is to step, or use ZeRO stage 0."
            )
        return original_backward(loss, *args, **kwargs)

    def step(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        result = original_step(*args, **kwargs)
        calls = 0
        return result

    engine.backward, engine.step = backward, step


PATCH = Patch(
    "repeated_backward",
    "At ZeRO stages 1 and 2 a second backward() before step() silently replaces the first one's gradients.",
    on_engine=apply,
)
