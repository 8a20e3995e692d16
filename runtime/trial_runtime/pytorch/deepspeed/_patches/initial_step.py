"""Half precision at ZeRO stage 0: take no optimizer step before training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from deepspeed.runtime.fp16.fused_optimizer import FP16_Optimizer
from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer

from trial_runtime.pytorch.deepspeed._patches.patch import Patch, replaced


@contextlib.contextmanager
def apply() -> Iterator[None]:
    """Let engines that are made inside take their first optimizer step in training.

    DeepSpeed steps those of stage 0 in half precision once when it makes them, with gradients of zero, to allocate
    their state. Adam's bias correction is one step ahead from then on (the first update is a quarter smaller), and
    weight decay has moved the weights. Optimizers of torch allocate their state in the first real step.
    """
    with replaced("initialize_optimizer_states", lambda _: lambda _: None, FP16_UnfusedOptimizer, FP16_Optimizer):
        yield


PATCH = Patch(
    "initial_step",
    "In half precision at ZeRO stage 0 DeepSpeed takes an optimizer step with zero gradients before training.",
    in_run=apply,
)
