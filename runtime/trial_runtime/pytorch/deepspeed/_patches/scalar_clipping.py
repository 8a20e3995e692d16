"""Clipping where a parameter has no dimensions: a learned temperature or scale."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any
from unittest import mock

import torch
from deepspeed.runtime import engine

from trial_runtime.pytorch.deepspeed._patches.patch import Patch


@contextlib.contextmanager
def apply() -> Iterator[None]:
    """Let engines at ZeRO stage 0 clip gradients without dimensions, which ``clip_grad_norm_`` of torch clips."""
    original = engine.clip_grad_norm_

    def clip_grad_norm_(parameters: Iterable[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        return original([_with_dimension(parameter) for parameter in parameters], *args, **kwargs)

    with mock.patch.object(engine, "clip_grad_norm_", clip_grad_norm_):
        yield


def _with_dimension(parameter: torch.Tensor) -> torch.Tensor:
    """Return a parameter, or for one without dimensions a view whose gradient is the same memory."""
    if parameter.dim() > 0 or parameter.grad is None:
        return parameter
    view = parameter.detach().view(1)
    view.grad = parameter.grad.view(1)
    return view


PATCH = Patch(
    "scalar_clipping",
    "At ZeRO stage 0 DeepSpeed cannot clip parameters without dimensions: it multiplies by a factor of shape [1].",
    in_process=apply,
)
