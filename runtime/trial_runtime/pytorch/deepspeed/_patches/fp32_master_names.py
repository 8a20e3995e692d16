"""Save the fp32 copies that half-precision engines of ZeRO stage 0 step with the names of their parameters.

DeepSpeed saves them in the order of the optimizer's groups, from which alone their parameters cannot be determined: the
weights of two normalisations are equal in half precision until training has moved them far enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from deepspeed.runtime.fp16.fused_optimizer import FP16_Optimizer
from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer

from trial_runtime.pytorch.deepspeed._patches.patch import NewEngine, Patch

_NAMES = "parameter_names"


def apply(new: NewEngine) -> None:
    """Let a new engine save the names and shapes with the copies, if it has copies."""
    engine, optimizer = new.engine, new.engine.optimizer
    if not isinstance(optimizer, FP16_Optimizer | FP16_UnfusedOptimizer):
        return
    names = {id(parameter): name for name, parameter in engine.module.named_parameters()}
    groups = [[(names.get(id(p), ""), tuple(p.shape)) for p in group] for group in optimizer.fp16_groups]
    original = optimizer.state_dict
    optimizer.state_dict = lambda: {**original(), _NAMES: groups}


def saved_masters(optimizer: dict[str, Any] | None) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the copies in an engine's optimizer state with their parameters' names, ``""`` when none were saved."""
    state = optimizer or {}
    groups = state.get(_NAMES, [])
    for number, copies in enumerate(state.get("fp32_groups") or []):
        names = groups[number] if groups else [("", ())] * len(copies)
        for (name, _), copy in zip(names, copies, strict=True):
            yield name, copy.detach()
    for named, flat in zip(groups, state.get("fp32_groups_flat") or [], strict=False):
        start = 0
        for name, shape in named:
            length = torch.Size(shape).numel()
            yield name, flat.detach()[start : start + length].view(shape)
            start += length


PATCH = Patch(
    "fp32_master_names",
    "Checkpoints of half precision at ZeRO stage 0 hold fp32 weights without the names of their parameters.",
    on_engine=apply,
)
