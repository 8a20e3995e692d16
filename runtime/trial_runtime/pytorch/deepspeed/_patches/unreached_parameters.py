"""Leave parameters alone that no backward reached, as torch does."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from trial_runtime import core
from trial_runtime.pytorch.deepspeed._engine.accumulation import is_managed
from trial_runtime.pytorch.deepspeed._patches.patch import NewEngine, Patch

logger = logging.getLogger("trial_runtime.pytorch.deepspeed")


def apply(new: NewEngine) -> None:
    """Let a new engine step only parameters that have a gradient on some rank.

    DeepSpeed steps the others with gradients of zero, so weight decay and momentum move them. At stage 0 in full
    precision they stay; elsewhere that is not possible, and the first such step logs their names.
    """
    if new.is_pipeline:
        return
    if has_torch_gradients(new.engine, new.distributed):
        _UnreachedParameters(new.engine, new.distributed)
    else:
        _UnreachedWarning(new.engine, len(new.engines))


def has_torch_gradients(engine: Any, distributed: core.DistributedContext) -> bool:
    """Return whether an engine's gradients are torch's own, reduced over all ranks."""
    return (
        int(engine.zero_optimization_stage()) == 0
        and not engine.fp16_enabled()
        and not engine.bfloat16_enabled()
        and not engine.has_moe_layers
        and not engine.pipeline_parallelism
        and engine.dp_world_size == distributed.size
    )


class _UnreachedParameters:
    """Reduction of an engine's gradients, which gives none to parameters that no rank's backward reached."""

    def __init__(self, engine: Any, distributed: core.DistributedContext) -> None:
        self.engine = engine
        self.distributed = distributed
        self._is_managed = is_managed(engine)
        self._parameters = list(engine.module.parameters())  # walking a large module's tree takes longer than a step
        self._reduce = engine.allreduce_gradients
        engine.allreduce_gradients = self.allreduce_gradients

    def allreduce_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """Reduce the gradients, then take those of unreached parameters away.

        A trial may call it itself before ``step()``, to read or change reduced gradients. Then ``step()`` reduces them
        again, which changes nothing.
        """
        engine = self.engine
        if not self._is_managed and not engine._running_engine_step:
            engine._running_engine_step = True  # what makes it a boundary
            try:
                return self.allreduce_gradients(*args, **kwargs)
            finally:
                engine._running_engine_step = False
        if not engine.is_gradient_accumulation_boundary():
            return self._reduce(*args, **kwargs)
        if self.distributed.size == 1:
            unreached = [p for p in self._parameters if p.grad is None and p.requires_grad]
            result = self._reduce(*args, **kwargs)
        else:
            parameters = [p for p in self._parameters if p.requires_grad]
            bits = torch.tensor([p.grad is None for p in parameters], dtype=torch.uint8)
            # On the host, among gloo ranks, and beside the gradients: the device is not waited for.
            agreement = dist.all_reduce(bits, dist.ReduceOp.MIN, group=self.distributed.group(), async_op=True)
            result = self._reduce(*args, **kwargs)
            agreement.wait()
            unreached = [p for p, bit in zip(parameters, bits.tolist(), strict=True) if bit]
        for parameter in unreached:
            parameter.grad = None
        return result


class _UnreachedWarning:
    """Warning about the first step with parameters that no backward reached since the step before.

    At stage 1 gradients are torch's own until they are reduced, and are looked at then, once a step. At stages 2 and 3
    they are taken away one by one: a hook of each parameter notes it.
    """

    def __init__(self, engine: Any, index: int) -> None:
        self.engine = engine
        self.index = index
        self._named = [(name, p) for name, p in engine.module.named_parameters() if p.requires_grad]
        self._reached: set[int] = set()
        self._unreached: list[str] = []
        self._hooks: list[Any] = []
        self._is_done = False
        self._step, self._reduce = engine.step, engine.allreduce_gradients
        engine.step = self.step
        stage = int(engine.zero_optimization_stage())
        self._looks_at_gradients = type(engine.optimizer).__name__ == "DeepSpeedZeroOptimizer" and stage == 1
        if self._looks_at_gradients:
            engine.allreduce_gradients = self._look_and_reduce
        else:
            self._hooks = [p.register_post_accumulate_grad_hook(self._note(id(p))) for _, p in self._named]

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Step the engine, and warn if a parameter was not reached."""
        result = self._step(*args, **kwargs)
        if self._is_done or not self.engine.was_step_applied():
            return result
        if not self._looks_at_gradients:
            self._unreached = [name for name, p in self._named if id(p) not in self._reached]
            self._reached.clear()
        if self._unreached:
            self._warn(self._unreached)
        return result

    def _note(self, key: int) -> Callable[[torch.Tensor], None]:
        return lambda _: self._reached.add(key)

    def _look_and_reduce(self, *args: Any, **kwargs: Any) -> Any:
        if not self._is_done and self.engine.is_gradient_accumulation_boundary():
            self._unreached = [name for name, p in self._named if p.grad is None and p.requires_grad]
        return self._reduce(*args, **kwargs)

    def _warn(self, names: list[str]) -> None:
        logger.warning(
            f"Engine {self.index}: no backward reached {', '.join(names[:10])}"
            + (f" and {len(names) - 10} more" if len(names) > 10 else "")
            + " before a step. DeepSpeed steps such parameters with gradients of zero, so weight decay or momentum "
            f"move them; torch and ZeRO stage 0 would not. (Stage {int(self.engine.zero_optimization_stage())}, "
            "reported once.)"
        )
        self._is_done = True
        for hook in self._hooks:
            hook.remove()


PATCH = Patch(
    "unreached_parameters",
    "DeepSpeed steps parameters that no backward reached with zero gradients; weight decay and momentum move them.",
    on_engine=apply,
)
