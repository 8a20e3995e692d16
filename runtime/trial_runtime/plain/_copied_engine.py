"""Copies of engines: DeepSpeed's own cannot be copied or pickled, and an object that trains keeps one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import MethodType
from typing import Any

import deepspeed

from trial_runtime.errors import InvalidExperimentException
from trial_runtime.plain._distributed import init_distributed


class CopiedEngine:
    """Engine of a copied or unpickled object, which is made where it is first used. That is collective.

    Args:
        match: what :func:`match_torch` is, which changes the engine.
        module: the copy of the engine's module.
        optimizer: the copy of the program's optimizer, with its state.
        config: what DeepSpeed was given.
        options: what ``match`` was given.
        scaler: the GradScaler that the engine uses, or None.
    """

    def __init__(
        self, match: Callable[..., Any], module: Any, optimizer: Any, config: Any, options: dict[str, bool], scaler: Any
    ) -> None:
        vars(self).update(parts=(match, module, optimizer, config, options, scaler), made=None)

    def _make(self) -> Any:
        if self.made is None:
            match, module, optimizer, config, options, scaler = self.parts
            init_distributed()
            engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=config)
            vars(self)["made"] = match(engine, **options)
            engine.torch_autocast_z0_gradscaler = scaler
        return self.made

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._make(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._make(), name, value)

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        return self._make()(*inputs, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return (CopiedEngine, self.parts) if self.made is None else self.made.__reduce_ex__(protocol)


def keep_copyable(engine: Any, match: Callable[..., Any], options: dict[str, bool]) -> None:
    """Have copies and pickles of an engine hold what makes another one."""

    def parts(engine: Any) -> tuple[Any, ...]:
        if stage := engine.zero_optimization_stage():
            raise InvalidExperimentException(
                f"an engine at ZeRO stage {stage} cannot be copied or pickled, as each rank has a share of the "
                "optimizer's state: set the stage to 0"
            )
        scaler = engine.torch_autocast_z0_gradscaler
        return match, engine.module, engine.client_optimizer, engine.config, options, scaler

    engine.__reduce_ex__ = MethodType(lambda self, _: (CopiedEngine, parts(self)), engine)
    engine.__deepcopy__ = MethodType(lambda self, memo: CopiedEngine(*copy.deepcopy(parts(self), memo)), engine)
