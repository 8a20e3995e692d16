"""Groups of an optimizer that hold no parameters, which DeepSpeed takes out of it."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from trial_runtime.errors import InvalidExperimentException
from trial_runtime.pytorch.deepspeed._patches.initialize_wrapper import around_initialize


def keep_empty_groups() -> AbstractContextManager[None]:
    """Let ``deepspeed.initialize`` keep groups without parameters, at ZeRO stage 0.

    A filter may find none, as for biases or where a part of the model is frozen. Without them the groups behind have
    other indices: a schedule gives them another's learning rate, and the original cannot load the optimizer's state.
    ZeRO has no place for such groups, so the stage is 0 where there are some.

    Raises:
        InvalidExperimentException: from ``deepspeed.initialize``, where another stage is in a file.
    """
    return around_initialize(_kept)


@contextlib.contextmanager
def _kept(given: Mapping[str, Any]) -> Iterator[None]:
    optimizer: Any = given.get("optimizer")
    config = given.get("config")
    groups = list(getattr(optimizer, "param_groups", ()))
    if all(group["params"] for group in groups):
        yield
        return
    zero = config.get("zero_optimization", {}) if isinstance(config, dict) else {}
    if zero.get("stage"):
        warnings.warn(
            f"ZeRO stage 0 in place of {zero['stage']}: ZeRO cannot keep groups of an optimizer without parameters",
            stacklevel=4,
        )
        zero["stage"] = 0
    held = [list(group["params"]) for group in groups]
    yield
    if not all(_are_same(group["params"], params) for group, params in zip(groups, held, strict=True)):
        raise InvalidExperimentException(
            "ZeRO has taken groups without parameters out of the optimizer, which changes the index of those behind: "
            "give the engine ZeRO stage 0, or leave such groups out"
        )
    optimizer.param_groups[:] = groups


def _are_same(found: list[Any], held: list[Any]) -> bool:
    return len(found) == len(held) and all(one is other for one, other in zip(found, held, strict=True))
