"""A script without DistributedDataParallel on several ranks: the same loop on each, gradients averaged after backward.

That is what data parallelism adds to a loop, and nothing else: each rank reads its share of the training data, and each
``backward()`` leaves the mean of the ranks' gradients. A schedule that steps by a metric, or an optimizer that steps by
the loss of a closure, gets the mean over the ranks: their learning rates, or their weights, would differ. The ranks
keep their own buffers and random numbers. The script knows nothing of it: the process group is not the default one,
``torch.distributed.is_initialized()`` stays False.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.optim.optimizer import register_optimizer_step_pre_hook


class RankGroup:
    """The ranks of a run, connected apart from the script's own process group.

    Args:
        store: a file that all ranks see, and that is not there yet.
    """

    def __init__(self, store: Path, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._group: Any = None
        if size > 1:
            torch_distributed: Any = dist
            files = torch_distributed.FileStore(str(store), size)
            self._group = dist.ProcessGroupGloo(files, rank, size, timedelta(minutes=5))

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum over the ranks. Collective."""
        if self._group is None:
            return tensor
        total = tensor.detach().cpu().contiguous().clone()
        self._group.allreduce([total]).wait()
        return total.to(tensor.device)

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set on any rank. Collective."""
        return bool(self.sum(torch.tensor(float(flag))) > 0)


def average_gradients(parameters: Iterable[torch.Tensor], group: RankGroup) -> None:
    """Replace each gradient by its mean over the ranks. Collective.

    A parameter that no rank has a gradient of keeps none; one that some ranks have counts as 0 on the others. Gradients
    that are averaged already stay as they are, so it may be called after each of several backwards.
    """
    listed = [parameter for parameter in parameters if parameter.requires_grad]
    if group.size == 1 or not listed:
        return
    reached = group.sum(torch.tensor([float(parameter.grad is not None) for parameter in listed]))
    for parameter, count in zip(listed, reached.tolist(), strict=True):
        if not count:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        gradient = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
        mean = group.sum(gradient) / group.size
        if parameter.grad.is_sparse:
            parameter.grad = mean
        else:
            parameter.grad.copy_(mean)


@contextlib.contextmanager
def schedules_by_mean(group: RankGroup, applies: Callable[[], bool]) -> Iterator[None]:
    """Have ``ReduceLROnPlateau`` step by the mean of the ranks' metrics where that applies."""
    step = ReduceLROnPlateau.step

    def by_mean(self: ReduceLROnPlateau, metrics: Any, *args: Any, **kwargs: Any) -> None:
        if group.size > 1 and applies():
            metrics = group.sum(torch.tensor(float(metrics), dtype=torch.float64)).item() / group.size
        step(self, metrics, *args, **kwargs)

    with mock.patch.object(ReduceLROnPlateau, "step", by_mean):
        yield


@contextlib.contextmanager
def closures_by_mean(group: RankGroup, applies: Callable[[], bool]) -> Iterator[None]:
    """Give optimizers that step with a closure the mean of the ranks' losses where that applies."""

    def by_mean(optimizer: Any, args: Any, kwargs: Any) -> Any:
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if group.size == 1 or closure is None or not applies():
            return None

        def averaged() -> Any:
            loss = closure()
            if not isinstance(loss, torch.Tensor | float):
                return loss
            mean = group.sum(torch.as_tensor(loss, dtype=torch.float64)) / group.size
            return mean.to(loss) if isinstance(loss, torch.Tensor) else mean.item()

        return (optimizer, averaged), {}

    hook = register_optimizer_step_pre_hook(by_mean)
    try:
        yield
    finally:
        hook.remove()
