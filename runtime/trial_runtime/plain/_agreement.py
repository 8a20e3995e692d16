"""Numbers and decisions on which all ranks agree."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist

Object = TypeVar("Object")
Module = TypeVar("Module", bound=torch.nn.Module)
Number = TypeVar("Number", bound="torch.Tensor | np.ndarray[Any, Any] | float")


def mean_over_ranks(number: Number) -> Number:
    """Return the mean of the ranks' numbers, on each rank. Collective.

    Args:
        number: a number, or a tensor or array of any shape that is the same on each rank.

    Returns:
        With one rank, the number itself. Else a float; for a tensor one of its shape, type and device, without a
        gradient; for an array one of its shape and type.
    """
    if world_size() == 1:
        return number
    if isinstance(number, np.ndarray):
        return cast(Number, mean_over_ranks(torch.from_numpy(np.ascontiguousarray(number))).numpy())
    given = number.detach() if isinstance(number, torch.Tensor) else torch.tensor(float(number), dtype=torch.float64)
    total = given.to(_device(), torch.float64, copy=True)
    dist.all_reduce(total)
    mean = (total / world_size()).to(given.device, given.dtype)
    return mean if isinstance(number, torch.Tensor) else mean.item()  # type: ignore[return-value]


def rank_0_decides(condition: object) -> bool:
    """Return whether the condition holds on rank 0, on each rank. Collective."""
    if world_size() == 1:
        return bool(condition)
    return bool(from_rank_0(torch.tensor([bool(condition)], dtype=torch.uint8)).item())


def any_rank(condition: object) -> bool:
    """Return whether the condition holds on one rank or more, on each rank. Collective."""
    if world_size() == 1:
        return bool(condition)
    holds = torch.tensor(int(bool(condition)), device=_device())
    dist.all_reduce(holds, op=dist.ReduceOp.MAX)
    return bool(holds.item())


def all_ranks(condition: object) -> bool:
    """Return whether the condition holds on all ranks, on each rank. Collective."""
    return not any_rank(not condition)


def object_from_rank_0(given: Object) -> Object:
    """Return rank 0's object, which is pickled, on each rank. Collective."""
    objects = [given]
    dist.broadcast_object_list(objects, src=0, device=_device())
    return objects[0]


def from_rank_0(tensor: torch.Tensor) -> torch.Tensor:
    """Return rank 0's tensor, of the shape and type that each rank's has, on the CPU. Collective."""
    moved = tensor.to(_device(), copy=True)
    dist.broadcast(moved, src=0)
    return moved.cpu()


def share_weights(module: Module) -> Module:
    """Return the module, with rank 0's weights and buffers on each rank. Collective.

    ``DistributedDataParallel`` begins so. Averages of weights and teachers that are copied from the module before its
    engine is made begin alike on all ranks then.
    """
    for tensor in (*module.parameters(), *module.buffers()) if world_size() > 1 else ():
        tensor.data.copy_(from_rank_0(tensor.data))
    return module


def world_size() -> int:
    """Return the number of ranks, 1 before they are started."""
    return dist.get_world_size() if dist.is_initialized() else 1


def _device() -> torch.device:
    """Return where a collective's tensors must be."""
    return torch.device("cuda" if "nccl" in dist.get_backend() else "cpu")
