"""Hooks of ZeRO on parameters, through which torch keeps an engine that nothing else refers to."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from deepspeed.runtime import bf16_optimizer
from deepspeed.runtime.zero import stage3, stage_1_and_2

from trial_runtime.pytorch.deepspeed._patches.patch import Patch, replaced

_MODULES: tuple[Any, ...] = (bf16_optimizer, stage_1_and_2, stage3)


@contextlib.contextmanager
def apply() -> Iterator[None]:
    """Have the parameters refer to their hooks weakly; the optimizer, which made them, keeps them."""
    with replaced("register_grad_hook", _weakly, *_MODULES):
        yield


def _weakly(original: Callable[..., Any]) -> Callable[[torch.Tensor, Callable[..., object]], Any]:
    def register_grad_hook(parameter: torch.Tensor, hook: Callable[..., object]) -> Any:
        reference = weakref.ref(hook)

        def call(*given: Any) -> None:
            kept = reference()
            if kept is not None:
                kept(*given)

        handle = original(parameter, call)
        handle.hook = hook  # the optimizer has a list of its handles
        return handle

    return register_grad_hook


PATCH = Patch(
    "gradient_hooks",
    "At ZeRO stages 1 to 3 no engine is ever freed: Python's garbage collector does not see into hooks on gradients.",
    in_process=apply,
)
