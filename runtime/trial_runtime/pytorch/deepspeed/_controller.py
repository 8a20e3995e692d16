"""The training of a DeepSpeedTrial, ready to run."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from trial_runtime import core
from trial_runtime.pytorch._controller import TrialController
from trial_runtime.pytorch.deepspeed._engine import engine_setup
from trial_runtime.pytorch.deepspeed._engine.strategy import DeepSpeedStrategy

_up = contextlib.ExitStack()  # what pre_execute_hook() brought up: for the rest of the process


class DeepSpeedTrialController(TrialController):
    """The controller of a DeepSpeedTrial: ``Trainer.fit`` makes it, and so do unit tests written for Determined."""

    _strategy_class = DeepSpeedStrategy

    @classmethod
    def pre_execute_hook(cls, trial_seed: int, distributed_backend: Any) -> None:
        """Start DeepSpeed and seed the generators, as ``init()`` does, for a context that is made by hand.

        DeepSpeed is left alone when the environment has ``DET_MANUAL_INIT_DISTRIBUTED``.

        Args:
            trial_seed: the seed, the same on every rank.
            distributed_backend: accepted and not used.
        """
        if not os.environ.get("DET_MANUAL_INIT_DISTRIBUTED"):
            launched = "RANK" in os.environ and "WORLD_SIZE" in os.environ
            ranks = core.DistributedContext.from_deepspeed() if launched else core.DummyDistributedContext()
            _up.enter_context(engine_setup.started(ranks))
        super().pre_execute_hook(trial_seed, distributed_backend)
