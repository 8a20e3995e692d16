"""Broadcast parameters of any shape and memory layout: scalars (CLIP's ``logit_scale``), channels last, transposed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import deepspeed.comm as dist
import torch
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.utils import groups

from trial_runtime.pytorch.deepspeed._patches.patch import Patch


@contextlib.contextmanager
def apply() -> Iterator[None]:
    """Let engines that are made inside take parameters of any layout.

    DeepSpeed gives rank 0's parameters to all ranks as views of bytes. A tensor without dimensions has no such view,
    nor has one whose last dimension is not contiguous: it raises "self.dim() cannot be 0 to view Float as Byte". Those
    are sent as contiguous copies here, the others by DeepSpeed.
    """
    original = DeepSpeedEngine._broadcast_model

    def broadcast_model(engine: Any) -> None:
        named = list(engine.module.named_parameters())
        without_view = {name for name, parameter in named if _has_no_byte_view(parameter)}
        if not without_view:
            original(engine)
            return
        for name, parameter in named:
            if name in without_view:
                copy = parameter.data.clone(memory_format=torch.contiguous_format)
                dist.broadcast(copy, groups._get_broadcast_src_rank(), group=engine.seq_data_parallel_group)
                parameter.data.copy_(copy)
        listed = [(name, parameter) for name, parameter in named if name not in without_view]
        engine.module.named_parameters = lambda *_, **__: iter(listed)
        try:
            original(engine)
        finally:
            del engine.module.named_parameters

    with mock.patch.object(DeepSpeedEngine, "_broadcast_model", broadcast_model):
        yield


def _has_no_byte_view(parameter: torch.nn.Parameter) -> bool:
    """Return whether it has no view as bytes. Parameters sharded by ZeRO stage 3 or experts are left to DeepSpeed."""
    if hasattr(parameter, "ds_id") or getattr(parameter, "allreduce", True) is False:
        return False
    return parameter.dim() == 0 or (parameter.numel() > 0 and parameter.stride(-1) != 1)


PATCH = Patch(
    "parameter_broadcast",
    "DeepSpeed cannot broadcast parameters that are scalars or whose last dimension is not contiguous.",
    in_run=apply,
)
