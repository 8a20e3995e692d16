"""Return the loss from ``backward()`` as it was given."""

from __future__ import annotations

from typing import Any

from trial_runtime.pytorch.deepspeed._patches.patch import NewEngine, Patch


def apply(new: NewEngine) -> None:
    """Let the engine's backward return its loss; DeepSpeed's returns it divided by the accumulation steps."""
    if new.is_pipeline or int(new.engine.gradient_accumulation_steps()) == 1:
        return
    original = new.engine.backward

    def backward(loss: Any, *args: Any, **kwargs: Any) -> Any:
        original(loss, *args, **kwargs)
        return loss

    new.engine.backward = backward


PATCH = Patch(
    "backward_loss",
    "With gradient accumulation engine.backward(loss) returns the loss divided by the accumulation steps.",
    on_engine=apply,
)
