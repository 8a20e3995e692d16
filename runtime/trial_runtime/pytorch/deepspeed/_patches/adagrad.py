"""Adagrad at ZeRO stages 1 to 3: step the trial's own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

from trial_runtime.pytorch.deepspeed._patches.patch import Patch, replaced


@contextlib.contextmanager
def apply() -> Iterator[None]:
    """Let engines that are made inside step the trial's Adagrad.

    DeepSpeed makes another one over its shards, because an Adagrad has its state from the beginning. That one has the
    default settings of the trial's, in one group: settings of parameter groups are lost, and schedulers change an
    optimizer that nobody steps.
    """
    kinds = (DeepSpeedZeroOptimizer, DeepSpeedZeroOptimizer_Stage3)
    with replaced("initialize_optimizer_states", _keep_optimizer, *kinds):
        yield


def _keep_optimizer(original: Callable[[Any], None]) -> Callable[[Any], None]:
    def initialize_optimizer_states(self: Any) -> None:
        own = self.optimizer
        original(self)
        made, self.optimizer = self.optimizer, own
        if made is not own:
            own.state.clear()  # of the whole parameters, which are sharded now
            own.state.update(made.state)

    return initialize_optimizer_states


PATCH = Patch(
    "adagrad",
    "At ZeRO stages 1 to 3 DeepSpeed replaces an Adagrad by one without its parameter groups and schedules.",
    in_run=apply,
)
