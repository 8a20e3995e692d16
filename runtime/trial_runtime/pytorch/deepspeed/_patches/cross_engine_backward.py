"""Send a loss through the forward of another engine, as a generator's goes through the discriminator."""

from __future__ import annotations

import weakref
from typing import Any

from trial_runtime.errors import InvalidExperimentException
from trial_runtime.pytorch.deepspeed._patches.patch import NewEngine, Patch, is_pipeline
from trial_runtime.pytorch.deepspeed._patches.unreached_parameters import has_torch_gradients

_THROUGH_ANOTHER = (
    "Engine {index}: backward() failed: {error}\nWith several engines the reason is mostly a loss that went through "
    "the forward of another engine, as a generator's does through the discriminator. That works where the other engine "
    "trains at ZeRO stage 0 in full precision. Elsewhere call its module there, with its parameters frozen: "
    "`other.module.requires_grad_(False); loss = other.module(fake)...; engine.backward(loss); "
    "other.module.requires_grad_(True)`. Or make the engines around EngineModule and call the models."
)
_GUARD = "_trial_runtime_cross_engine_backward"


def apply(new: NewEngine) -> None:
    """Let backward of each engine go through the others; a trial with one engine keeps DeepSpeed's.

    Where gradients are torch's own (stage 0 in full precision) they are left in the other engine's parameters, as by
    torch, until its next ``step()`` or ``zero_grad()``. Elsewhere DeepSpeed fails in one of three ways: one error here.
    """
    engines = [(index, e) for index, e in enumerate([*new.engines, new.engine]) if not is_pipeline(e)]
    if new.is_pipeline or len(engines) == 1:
        return
    for index, engine in engines:
        if not hasattr(engine, _GUARD):
            setattr(engine, _GUARD, _CrossEngineBackward(engine, index))
    guards = weakref.WeakSet(getattr(engine, _GUARD) for _, engine in engines)  # else no engine would end
    for guard in guards:
        guard.guards = guards
        if has_torch_gradients(guard.engine, new.distributed):
            guard.engine._backward_prologue = guard.backward_prologue


class _CrossEngineBackward:
    """Backward of one of several engines."""

    def __init__(self, engine: Any, index: int) -> None:
        self.engine = engine
        self.index = index
        self.guards: weakref.WeakSet[_CrossEngineBackward] = weakref.WeakSet()
        self._is_running = False
        self._backward, self._prologue = engine.backward, engine._backward_prologue
        engine.backward = self.backward

    def backward(self, loss: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the engine's backward; returns ``loss`` as it is.

        Raises:
            InvalidExperimentException: when it fails, with the way out.
        """
        self._is_running = True
        try:
            return self._backward(loss, *args, **kwargs)
        except (AssertionError, RuntimeError) as error:
            raise InvalidExperimentException(_THROUGH_ANOTHER.format(index=self.index, error=error)) from error
        finally:
            self._is_running = False

    def backward_prologue(self) -> None:
        """Prepare the engine when a backward reaches its outputs; do nothing when that is another engine's."""
        if not any(guard._is_running for guard in self.guards if guard is not self):
            self._prologue()


PATCH = Patch(
    "cross_engine_backward",
    "A loss that went through another engine's forward fails in DeepSpeed, in one of three ways.",
    on_engine=apply,
)
