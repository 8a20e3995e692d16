"""What the runtime adds to a wrapped engine: numbers as torch makes them, and errors where DeepSpeed is silent."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from trial_runtime import core
from trial_runtime.errors import InvalidExperimentException
from trial_runtime.pytorch.deepspeed._engine.unused_parameters import UntouchedWatch

_THROUGH_ANOTHER = (
    "Engine {index}: backward() failed: {error}\nWith several engines the reason is mostly a loss that went through "
    "the forward of another engine, as a generator's does through the discriminator. That works where the other engine "
    "trains at ZeRO stage 0 in full precision. Elsewhere call its module there, with its parameters frozen: "
    "`other.module.requires_grad_(False); loss = other.module(fake)...; engine.backward(loss); "
    "other.module.requires_grad_(True)`. Or make the engines around EngineModule and call the models."
)


class EngineGuard:
    """Watches the backward and step calls of an engine.

    - At ZeRO stages 1 and 2 the gradients of the first of two backward calls are lost without a word: the second call
      is an error, unless the engine is set up for it.
    - A loss that went through another engine's forward fails in one of three ways. Where gradients are torch's own
      (stage 0 in full precision) it works here, and they are left in the other engine's parameters as by torch, until
      its next ``step()`` or ``zero_grad()``; elsewhere it is one error.
    - DeepSpeed's backward returns the loss divided by the accumulation steps: here it returns the loss.
    - DeepSpeed steps parameters that no backward reached with gradients of zero, so weight decay and momentum move
      them. Torch leaves them alone. At stage 0 in full precision they are left alone here too; elsewhere they are named
      once.

    Args:
        engine: the engine; its methods are replaced.
        guards: those of the engines that were wrapped before; this one is added.
        distributed: the ranks.
    """

    def __init__(self, engine: Any, guards: list[EngineGuard], distributed: core.DistributedContext) -> None:
        self.engine = engine
        self.index = len(guards)
        self.guards = guards
        self.distributed = distributed
        self._backwards = 0
        self._running = False
        self._managed = is_managed(engine)
        self._keeps_last_only = self._managed and int(engine.zero_optimization_stage()) in (1, 2)
        self._parameters = list(engine.module.parameters())  # walking a large module's tree takes longer than a step
        self._backward, self._step, self._reduce = engine.backward, engine.step, engine.allreduce_gradients
        self._prologue = engine._backward_prologue
        self._as_torch = leaves_untouched_alone(engine, distributed)
        guards.append(self)
        for guard in guards:
            if len(guards) > 1 or self._keeps_last_only or int(engine.gradient_accumulation_steps()) > 1:
                guard.engine.backward = guard.backward  # elsewhere it is right as it is
            if len(guards) > 1 and guard._as_torch:
                guard.engine._backward_prologue = guard._backward_prologue
        if self._as_torch:
            engine.allreduce_gradients = self.allreduce_gradients
        else:
            engine.step = self.step
            self._watch = UntouchedWatch(engine, self.index)

    def backward(self, loss: Any, *args: Any, **kwargs: Any) -> Any:
        """The engine's backward, refused where it would lose gradients. Returns ``loss`` as it is."""
        if self._keeps_last_only:
            self._backwards += 1
        if self._backwards > 1 and not self._told():
            raise InvalidExperimentException(
                f"Engine {self.index}: backward() was called {self._backwards} times before step(), at ZeRO stage "
                f"{int(self.engine.zero_optimization_stage())}, where DeepSpeed keeps only the last call's gradients. "
                'Add the losses and call backward() once, or put "managed_gradient_accumulation": false into the '
                "DeepSpeed config and call step() when the optimizer is to step, or use ZeRO stage 0."
            )
        self._running = True
        try:
            self._backward(loss, *args, **kwargs)
        except (AssertionError, RuntimeError) as error:
            if len(self.guards) > 1:
                raise InvalidExperimentException(_THROUGH_ANOTHER.format(index=self.index, error=error)) from error
            raise
        finally:
            self._running = False
        return loss

    def _backward_prologue(self) -> None:
        """What the engine does when a backward reaches its outputs: nothing where that is another engine's."""
        if not any(guard._running for guard in self.guards if guard is not self):
            self._prologue()

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """The engine's step."""
        result = self._step(*args, **kwargs)
        self._backwards = 0
        self._watch.stepped()
        return result

    def allreduce_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """The engine's reduction, after which parameters that no rank's backward reached have no gradient again.

        A trial may call it itself before ``step()``, to read or change shared gradients; ``step()`` shares them again,
        which changes nothing.
        """
        engine = self.engine
        if not self._managed and not engine._running_engine_step:
            engine._running_engine_step = True  # what makes it a boundary
            try:
                return self.allreduce_gradients(*args, **kwargs)
            finally:
                engine._running_engine_step = False
        if not engine.is_gradient_accumulation_boundary():
            return self._reduce(*args, **kwargs)
        if self.distributed.size == 1:
            untouched = [p for p in self._parameters if p.grad is None and p.requires_grad]
            result = self._reduce(*args, **kwargs)
        else:
            parameters = [p for p in self._parameters if p.requires_grad]
            bits = torch.tensor([p.grad is None for p in parameters], dtype=torch.uint8)
            # On the host, among gloo ranks, and beside the gradients: the device is not waited for.
            told = dist.all_reduce(bits, dist.ReduceOp.MIN, group=self.distributed.group(), async_op=True)
            result = self._reduce(*args, **kwargs)
            told.wait()
            untouched = [p for p, bit in zip(parameters, bits.tolist(), strict=True) if bit]
        for parameter in untouched:
            parameter.grad = None
        return result

    def _told(self) -> bool:
        """Whether the trial says where the boundary is, or has gradients coalesced: then none are lost."""
        return self.engine._is_gradient_accumulation_boundary is not None or bool(self.engine.inside_no_sync_ctxt)


def leaves_untouched_alone(engine: Any, distributed: core.DistributedContext) -> bool:
    """Whether parameters without a gradient can be kept from being stepped: gradients are torch's own, and reduced."""
    return (
        int(engine.zero_optimization_stage()) == 0
        and not engine.fp16_enabled()
        and not engine.bfloat16_enabled()
        and not engine.has_moe_layers
        and not engine.pipeline_parallelism
        and engine.dp_world_size == distributed.size
    )


def is_managed(engine: Any) -> bool:
    """Whether the engine counts micro-batches itself; else every ``step()`` steps."""
    managed = getattr(engine, "managed_gradient_accumulation", None)  # since DeepSpeed 0.19.4
    return True if managed is None else bool(managed())
