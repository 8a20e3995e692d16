"""Gradients of float64, of complex numbers, and of other types that an accelerator is not listed to support."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from deepspeed.runtime import engine
from deepspeed.runtime.sparse_tensor import SparseTensor

from trial_runtime.pytorch.deepspeed._patches.patch import Patch

_Buckets = list[tuple[torch.dtype, list[Any]]]


@contextlib.contextmanager
def apply() -> Iterator[None]:
    """Let engines at ZeRO stage 0 average gradients of any type, with those of the same type and as precise."""
    average = engine.DeepSpeedEngine.allreduce_bucket

    def average_as_precise(self: Any, bucket: list[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        config = self._config
        if bucket[0].dtype is not torch.float64 or config.communication_data_type is not None:
            return average(self, bucket, *args, **kwargs)
        config.communication_data_type = torch.float64  # it would be float32
        try:
            return average(self, bucket, *args, **kwargs)
        finally:
            config.communication_data_type = None

    splits = mock.patch.object(engine, "split_half_float_double_sparse", _split)
    with splits, mock.patch.object(engine.DeepSpeedEngine, "allreduce_bucket", average_as_precise):
        yield


def _split(tensors: list[Any]) -> tuple[_Buckets, _Buckets]:
    """Return sparse and dense gradients, by type; those of complex numbers as real ones in the same memory."""
    by_kind: dict[bool, dict[torch.dtype, list[Any]]] = {True: {}, False: {}}
    for tensor in tensors:
        is_sparse = isinstance(tensor, SparseTensor)
        real = torch.view_as_real(tensor) if not is_sparse and tensor.is_complex() else tensor
        by_kind[is_sparse].setdefault(real.dtype, []).append(real)
    return list(by_kind[True].items()), list(by_kind[False].items())


PATCH = Patch(
    "gradient_dtypes",
    "At ZeRO stage 0 DeepSpeed refuses gradients of float64 and complex ones, which an accelerator is not listed to "
    "support, rounds float64 to float32, and leaves out imaginary parts.",
    in_process=apply,
)
