"""Parameters that no backward reached, where DeepSpeed steps them all the same: named once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

logger = logging.getLogger("trial_runtime.pytorch.deepspeed")


class UntouchedWatch:
    """Watches for steps with parameters that no backward reached since the step before; the first one is logged.

    At stage 1 gradients are torch's own until they are reduced, and are looked at then, once a step. At stages 2 and 3
    they are taken away one by one: a hook of each parameter notes it.

    Args:
        engine: the engine; at stage 1 its reduction is replaced.
        index: its number, for the message.
    """

    def __init__(self, engine: Any, index: int) -> None:
        self.engine = engine
        self.index = index
        self._named = [(name, p) for name, p in engine.module.named_parameters() if p.requires_grad]
        self._reached: set[int] = set()
        self._hooks: list[Any] = []
        self._reduce = engine.allreduce_gradients
        self._looks = (
            type(engine.optimizer).__name__ == "DeepSpeedZeroOptimizer" and int(engine.zero_optimization_stage()) == 1
        )
        self._done = False
        if self._looks:
            engine.allreduce_gradients = self._look_and_reduce
        else:
            self._hooks = [p.register_post_accumulate_grad_hook(self._note(id(p))) for _, p in self._named]
        self._untouched: list[str] = []

    def _note(self, key: int) -> Callable[[torch.Tensor], None]:
        return lambda _: self._reached.add(key)

    def _look_and_reduce(self, *args: Any, **kwargs: Any) -> Any:
        if not self._done and self.engine.is_gradient_accumulation_boundary():
            self._untouched = [name for name, p in self._named if p.grad is None and p.requires_grad]
        return self._reduce(*args, **kwargs)

    def stepped(self) -> None:
        """The engine's ``step()`` was called."""
        if self._done or not self.engine.was_step_applied():
            return
        if not self._looks:
            self._untouched = [name for name, p in self._named if id(p) not in self._reached]
            self._reached.clear()
        if self._untouched:
            self._say()

    def _say(self) -> None:
        names = self._untouched
        logger.warning(
            f"Engine {self.index}: no backward reached {', '.join(names[:10])}"
            + (f" and {len(names) - 10} more" if len(names) > 10 else "")
            + " before a step. DeepSpeed steps such parameters with gradients of zero, so weight decay or momentum "
            f"move them; torch and ZeRO stage 0 would not. (Stage {int(self.engine.zero_optimization_stage())}, "
            "said once.)"
        )
        self._done = True
        for hook in self._hooks:
            hook.remove()
