"""Adagrad at ZeRO stages 1 to 3: the trial's own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Engines that are made inside step the trial's Adagrad.

    DeepSpeed makes another one over its shards, because an Adagrad has its state from the beginning. That one has the
    default settings of the trial's, in one group: settings of parameter groups are lost, and schedulers go on with an
    optimizer that nobody steps.
    """
    kinds = (DeepSpeedZeroOptimizer, DeepSpeedZeroOptimizer_Stage3)
    originals = [kind.initialize_optimizer_states for kind in kinds]
    for kind, original in zip(kinds, originals, strict=True):
        kind.initialize_optimizer_states = _keeping(original)
    try:
        yield
    finally:
        for kind, original in zip(kinds, originals, strict=True):
            kind.initialize_optimizer_states = original


def _keeping(original: Callable[[Any], None]) -> Callable[[Any], None]:
    def initialize_optimizer_states(self: Any) -> None:
        own = self.optimizer
        original(self)
        made, self.optimizer = self.optimizer, own
        if made is not own:
            own.state.clear()  # of the whole parameters, which are sharded now
            own.state.update(made.state)

    return initialize_optimizer_states
