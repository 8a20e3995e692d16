"""Horovod's functions over torch.distributed, for trials that reduce a count or a metric themselves.

On one rank each is the identity. On several, all ranks make the same calls in the same order. Tensors on a GPU go
through torch.distributed's default group when that is nccl, all others through gloo.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from trial_runtime import core
from trial_runtime._refusal import refused

Average = "Average"
Sum = "Sum"


class Compression:
    """Compression of tensors in transit; accepted, and nothing is compressed."""

    none = "none"
    fp16 = "fp16"


def init() -> None:
    """Do nothing: the launcher has started the ranks."""


def shutdown() -> None:
    """Do nothing: the ranks stay connected until they end."""


def require_horovod_type(horovod_type: str, reason: str) -> None:
    """Check that torch is asked for.

    Raises:
        ValueError: another framework is.
    """
    if horovod_type != "torch":
        raise ValueError(f"Horovod is served for torch only, not for {horovod_type!r} ({reason}).")


def is_initialized() -> bool:
    """Return True: nothing needs to be initialized."""
    return True


def rank() -> int:
    """Return the index of this process in the run."""
    return _ranks().rank


def size() -> int:
    """Return the number of processes in the run."""
    return _ranks().size


def local_rank() -> int:
    """Return the index of this process on its node."""
    return _ranks().local_rank


def local_size() -> int:
    """Return the number of processes on this node."""
    return _ranks().local_size


def cross_rank() -> int:
    """Return the index of this node."""
    return _ranks().cross_rank


def cross_size() -> int:
    """Return the number of nodes."""
    return _ranks().cross_size


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: str | None = None,
) -> torch.Tensor:
    """Return the mean of a tensor over the ranks, or the sum. The gradient is reduced in the same way.

    Args:
        tensor: of the same shape and type on all ranks; left as it is.
        average: False for the sum.
        name: accepted and not used.
        compression: accepted and not used.
        op: ``Average`` or ``Sum``.

    Returns:
        a new tensor of the same type; the mean of integers is rounded down.

    Raises:
        ValueError: both ``average`` and ``op`` are given, or ``op`` is another one.
    """
    del name, compression
    return _apply(_AllReduce, tensor, _is_average(average, op))


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: str | None = None,
) -> torch.Tensor:
    """Replace the content of a tensor by its mean or sum over the ranks; see :func:`allreduce`. Without gradients."""
    del name, compression
    with torch.no_grad():
        return tensor.copy_(_reduced(tensor, _is_average(average, op)))


def allgather(tensor: torch.Tensor, name: str | None = None) -> torch.Tensor:
    """Return the ranks' tensors, concatenated along dimension 0 in the order of ranks; their lengths may differ.

    The gradient of a rank's tensor is its slice of the *sum* of all ranks' gradients, as in Horovod before process
    sets, and as averaging the parameters' gradients over ranks needs it.
    """
    del name
    return _apply(_AllGather, tensor)


def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> torch.Tensor:
    """Return a new tensor with the content of the root's. Its gradient reaches the root's tensor, summed over ranks."""
    del name
    return _apply(_Broadcast, tensor, root_rank)


def broadcast_(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> torch.Tensor:
    """Replace the content of a tensor by that of the root's. Without gradients."""
    del name
    with torch.no_grad():
        return tensor.copy_(_broadcasted(tensor, root_rank))


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """Return the root's object (picklable) on every rank."""
    del name
    return _ranks().allgather(obj if rank() == root_rank else None)[root_rank]


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Return every rank's object (picklable), ordered by rank."""
    del name
    return _ranks().allgather(obj)


def broadcast_parameters(params: Mapping[str, Any] | Iterable[tuple[str, Any]], root_rank: int) -> None:
    """Give all ranks the root's parameters, in place.

    Args:
        params: ``model.state_dict()`` or ``model.named_parameters()``.
        root_rank: the rank to take them from.
    """
    for _, value in sorted(params.items()) if isinstance(params, Mapping) else params:
        if isinstance(value, torch.Tensor):
            broadcast_(value.data, root_rank)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int) -> None:
    """Give all ranks the root's optimizer state and learning rates, in place."""
    state = broadcast_object(optimizer.state_dict(), root_rank)
    if rank() != root_rank:
        optimizer.load_state_dict(state)


class SyncBatchNorm(torch.nn.SyncBatchNorm):
    """Batch normalization over the batches of all ranks; on one rank, that of ``torch.nn.BatchNorm*``.

    Raises:
        ValueError: in the forward pass, when it trains on several ranks without a GPU.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        if size() == 1:
            self._check_input_dim(input)
            return torch.nn.modules.batchnorm._BatchNorm.forward(self, input)
        return super().forward(input)


DistributedOptimizer = refused("determined.horovod.hvd.DistributedOptimizer")


def _ranks() -> core.DistributedContext:
    return _ranks_of(dist.is_initialized(), os.environ.get("RANK"), os.environ.get("WORLD_SIZE"))


@functools.lru_cache(maxsize=1)
def _ranks_of(is_connected: bool, rank: str | None, size: str | None) -> core.DistributedContext:
    if is_connected or (rank is not None and size is not None):
        return core.DistributedContext.from_torch_distributed()
    return core.DummyDistributedContext()


def _is_average(average: bool | None, op: str | None) -> bool:
    if average is not None and op is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    if op not in (None, Average, Sum):
        raise ValueError(f"op must be hvd.Average or hvd.Sum, not {op!r}.")
    return op == Average if op is not None else average is not False


def _transfer(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
    """Return a contiguous copy that can be sent, and the process group that sends it."""
    group = _ranks().group()
    if tensor.is_cuda and dist.get_backend() == "nccl":
        return tensor.detach().clone(memory_format=torch.contiguous_format), None
    on_host = tensor.detach().cpu()
    half = on_host.dtype in (torch.float16, torch.bfloat16)
    return (on_host.float() if half else on_host.clone(memory_format=torch.contiguous_format)), group


def _reduced(tensor: torch.Tensor, average: bool) -> torch.Tensor:
    if size() == 1:
        return tensor.detach().clone()
    total, group = _transfer(tensor)
    dist.all_reduce(total, group=group)
    if average:
        total = total / size() if total.is_floating_point() or total.is_complex() else total // size()
    return total.to(device=tensor.device, dtype=tensor.dtype)


def _gathered(tensor: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    own, group = _transfer(tensor)
    padded = own.new_zeros((max(lengths), *own.shape[1:]))
    padded[: own.shape[0]] = own
    parts = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(parts, padded, group=group)
    whole = torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])
    return whole.to(device=tensor.device, dtype=tensor.dtype)


def _broadcasted(tensor: torch.Tensor, root_rank: int) -> torch.Tensor:
    if size() == 1:
        return tensor.detach().clone()
    content, group = _transfer(tensor)
    dist.broadcast(content, root_rank, group=group)
    return content.to(device=tensor.device, dtype=tensor.dtype)


def _apply(function: Any, tensor: torch.Tensor, *args: Any) -> torch.Tensor:
    result: torch.Tensor = function.apply(tensor, *args)
    return result


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, average: bool) -> torch.Tensor:
        ctx.average = average
        return _reduced(tensor, average)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        return _reduced(grads[0], ctx.average), None


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        rows = tensor.reshape(1) if tensor.dim() == 0 else tensor
        ctx.shape = tensor.shape
        ctx.lengths = _ranks().allgather(rows.shape[0])
        return rows.detach().clone() if len(ctx.lengths) == 1 else _gathered(rows, ctx.lengths)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        start = sum(ctx.lengths[: rank()])
        return (_reduced(grads[0], average=False)[start : start + ctx.lengths[rank()]].reshape(ctx.shape),)


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: int) -> torch.Tensor:
        ctx.root_rank = root_rank
        return _broadcasted(tensor, root_rank)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        total = _reduced(grads[0], average=False)
        return (total if rank() == ctx.root_rank else torch.zeros_like(total)), None
