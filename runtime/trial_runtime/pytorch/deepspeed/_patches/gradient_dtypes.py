"""Gradients of float64 and of other types that an accelerator is not listed to support."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from deepspeed.runtime import engine
from deepspeed.runtime.sparse_tensor import SparseTensor

from trial_runtime.pytorch.deepspeed._patches.patch import Patch

_Buckets = list[tuple[torch.dtype, list[Any]]]


@contextlib.contextmanager
def apply() -> Iterator[None]:
    """Let engines at ZeRO stage 0 average gradients of any floating-point type, each with those of its type."""
    original = engine.split_half_float_double_sparse
    engine.split_half_float_double_sparse = _split
    try:
        yield
    finally:
        engine.split_half_float_double_sparse = original


def _split(tensors: list[Any]) -> tuple[_Buckets, _Buckets]:
    """Return sparse and dense gradients, by type."""
    by_kind: dict[bool, dict[torch.dtype, list[Any]]] = {True: {}, False: {}}
    for tensor in tensors:
        by_kind[isinstance(tensor, SparseTensor)].setdefault(tensor.dtype, []).append(tensor)
    return list(by_kind[True].items()), list(by_kind[False].items())


PATCH = Patch(
    "gradient_dtypes",
    "At ZeRO stage 0 DeepSpeed refuses gradients of float64, which an accelerator is not listed to support.",
    in_process=apply,
)
