"""Leave parameters alone that no backward reached, as torch does."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import compress
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
    precision, and at stage 1, they stay; elsewhere that is not possible, and the first such step logs their names.
    """
    if new.is_pipeline:
        return
    if has_torch_gradients(new.engine, new.distributed):
        _UnreachedParameters(new.engine, new.distributed)
    elif new.stage == 1 and _holds_shards(new.engine, new.distributed):
        _UnreachedShards(new.engine, new.distributed, len(new.engines))
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
        self._is_in_backward = False
        self._reduce, self._end_backward = engine.allreduce_gradients, engine._backward_epilogue
        engine.allreduce_gradients, engine._backward_epilogue = self.allreduce_gradients, self.end_backward

    def end_backward(self) -> None:
        """End a backward pass as the engine does: it reduces gradients there at a boundary alone."""
        self._is_in_backward = True
        try:
            self._end_backward()
        finally:
            self._is_in_backward = False

    def allreduce_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """Reduce the gradients, then take those of unreached parameters away.

        A trial may call it itself before ``step()``, to read or change reduced gradients. Then ``step()`` reduces them
        again, which changes nothing.
        """
        engine = self.engine
        if not (self._is_managed or engine._running_engine_step or self._is_in_backward):
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


def _holds_shards(engine: Any, distributed: core.DistributedContext) -> bool:
    is_known = type(engine.optimizer).__name__ == "DeepSpeedZeroOptimizer"
    return is_known and not engine.has_moe_layers and engine.dp_world_size == distributed.size


class _UnreachedShards:
    """Steps of a ZeRO 1 engine that leave its shards of parameters alone which no rank's backward reached.

    Gradients are torch's own until they are reduced, and are looked at then. An optimizer that counts its steps (Adam)
    counts them for all parameters of a group together: a parameter that is reached now and then differs by that from
    torch's, and is named once.
    """

    def __init__(self, engine: Any, distributed: core.DistributedContext, index: int) -> None:
        self.engine = engine
        self.distributed = distributed
        self.index = index
        self._named = [(name, p) for name, p in engine.module.named_parameters() if p.requires_grad]
        self._unreached: dict[str, torch.nn.Parameter] = {}
        self._unreached_first: set[str] | None = None  # in the first step
        self._is_named = False
        self._reduce, self._step = engine.allreduce_gradients, engine.optimizer._optimizer_step
        engine.allreduce_gradients = self.allreduce_gradients
        engine.optimizer._optimizer_step = self.step

    def allreduce_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """Reduce the gradients, and note which parameters no rank has one for."""
        if not self.engine.is_gradient_accumulation_boundary():
            return self._reduce(*args, **kwargs)
        bits = torch.tensor([p.grad is None for _, p in self._named], dtype=torch.uint8)
        if self.distributed.size > 1:
            dist.all_reduce(bits, dist.ReduceOp.MIN, group=self.distributed.group())
        self._unreached = dict(compress(self._named, bits.tolist()))
        for name, parameter in self._named:
            if parameter.grad is None and name not in self._unreached:
                parameter.grad = torch.zeros_like(parameter)  # DeepSpeed fails where ranks reduce other gradients
        if self._unreached_first is None:
            self._unreached_first = set(self._unreached)
        return self._reduce(*args, **kwargs)

    def step(self, group: int) -> None:
        """Step the shard of a group of parameters, and put the parts of unreached ones back."""
        shard = self.engine.optimizer.single_partition_of_fp32_groups[group]
        mappings = [getattr(p, "_hp_mapping", None) for p in self._unreached.values()]  # None: another rank has it
        own = [m for m in mappings if m is not None and m.param_group_index == group]
        before = [{name: part.clone() for name, part in self._parts(mapping, shard)} for mapping in own]
        self._step(group)
        for mapping, parts in zip(own, before, strict=True):
            for name, part in self._parts(mapping, shard):
                part.copy_(parts[name]) if name in parts else part.zero_()  # a state as it begins
        self._name_counted(self.engine.optimizer.optimizer)

    def _parts(self, mapping: Any, shard: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield a parameter's part of the shard, and of each state of it."""
        yield "", mapping.hp_fragment.detach()
        where = mapping.hp_fragment_address
        for name, value in self.engine.optimizer.optimizer.state[shard].items():
            if torch.is_tensor(value) and value.shape == shard.shape:
                yield name, value.narrow(0, where.start, where.numel)

    def _name_counted(self, optimizer: torch.optim.Optimizer) -> None:
        names = sorted((self._unreached_first or set()) ^ self._unreached.keys())
        if self._is_named or not names or not any("step" in state for state in optimizer.state.values()):
            return
        self._is_named = True
        logger.warning(
            f"Engine {self.index}: no backward reached {_listed(names)} before some steps, but before others. "
            f"{type(optimizer).__name__} counts its steps for them too at ZeRO stage 1; torch and stage 0 would not. "
            "(Reported once.)"
        )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


class _UnreachedWarning:
    """Warning about the first step with parameters that no backward reached since the step before.

    Gradients are taken away one by one: a hook of each parameter notes it.
    """

    def __init__(self, engine: Any, index: int) -> None:
        self.engine = engine
        self.index = index
        self._named = [(name, p) for name, p in engine.module.named_parameters() if p.requires_grad]
        self._reached: set[int] = set()
        self._is_done = False
        self._step = engine.step
        engine.step = self.step
        self._hooks = [p.register_post_accumulate_grad_hook(self._note(id(p))) for _, p in self._named]

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Step the engine, and warn if a parameter was not reached."""
        result = self._step(*args, **kwargs)
        if self._is_done or not self.engine.was_step_applied():
            return result
        unreached = [name for name, p in self._named if id(p) not in self._reached]
        self._reached.clear()
        if unreached:
            self._warn(unreached)
        return result

    def _note(self, key: int) -> Callable[[torch.Tensor], None]:
        return lambda _: self._reached.add(key)

    def _warn(self, names: list[str]) -> None:
        logger.warning(
            f"Engine {self.index}: no backward reached {_listed(names)} before a step. DeepSpeed steps such parameters "
            "with gradients of zero, so weight decay or momentum move them; torch and ZeRO stages 0 and 1 would not. "
            f"(Stage {int(self.engine.zero_optimization_stage())}, reported once.)"
        )
        self._is_done = True
        for hook in self._hooks:
            hook.remove()


PATCH = Patch(
    "unreached_parameters",
    "DeepSpeed steps parameters that no backward reached with zero gradients; weight decay and momentum move them.",
    on_engine=apply,
)
