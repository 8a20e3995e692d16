"""Half precision at ZeRO stage 0: no optimizer step before training."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from deepspeed.runtime.fp16.fused_optimizer import FP16_Optimizer
from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer


@contextlib.contextmanager
def not_taken_early() -> Iterator[None]:
    """Engines that are made inside step their optimizers when they are told to, for the first time too.

    DeepSpeed steps those of stage 0 in half precision once when it makes them, with gradients of zero, to allocate
    their state. Adam's bias correction is one step ahead from then on (the first update is a quarter smaller), and
    weight decay has moved the weights. Optimizers of torch allocate their state in the first real step.
    """
    with states_made_by(lambda _: lambda _: None, FP16_UnfusedOptimizer, FP16_Optimizer):
        yield


@contextlib.contextmanager
def states_made_by(change: Callable[[Callable[[Any], None]], Callable[[Any], None]], *kinds: Any) -> Iterator[None]:
    """Inside, ``initialize_optimizer_states`` of these classes of DeepSpeed is what ``change`` makes of it."""
    originals = [kind.initialize_optimizer_states for kind in kinds]
    for kind, original in zip(kinds, originals, strict=True):
        kind.initialize_optimizer_states = change(original)
    try:
        yield
    finally:
        for kind, original in zip(kinds, originals, strict=True):
            kind.initialize_optimizer_states = original
