"""Adagrad at ZeRO stages 1 to 3: the trial's own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

from trial_runtime.pytorch.deepspeed._patches.initial_step import states_made_by


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Engines that are made inside step the trial's Adagrad.

    DeepSpeed makes another one over its shards, because an Adagrad has its state from the beginning. That one has the
    default settings of the trial's, in one group: settings of parameter groups are lost, and schedulers go on with an
    optimizer that nobody steps.
    """
    with states_made_by(_keeping, DeepSpeedZeroOptimizer, DeepSpeedZeroOptimizer_Stage3):
        yield


def _keeping(original: Callable[[Any], None]) -> Callable[[Any], None]:
    def initialize_optimizer_states(self: Any) -> None:
        own = self.optimizer
        original(self)
        made, self.optimizer = self.optimizer, own
        if made is not own:
            own.state.clear()  # of the whole parameters, which are sharded now
            own.state.update(made.state)

    return initialize_optimizer_states
