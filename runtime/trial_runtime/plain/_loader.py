"""Data loaders that give each rank its share of every global batch."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from multiprocessing import parent_process
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, Sampler

from trial_runtime.plain._agreement import from_rank_0, world_size
from trial_runtime.plain._distributed import init_distributed


def shard(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Return a loader whose batches are this rank's shares, of which all ranks together have the loader's batches.

    Each batch has the size that it had, and n ranks take n batches at a time: they train as one rank with batches n
    times as large. Random samplers draw as they did, on rank 0's random state. Every rank gets as many batches; the
    first samples fill up where the data cannot be divided, as ``DistributedSampler`` does it. With one rank, and for a
    loader whose sampler divides the data itself, this is the loader itself.

    A script that makes its loaders before it starts its ranks, at the top of its module, has them started here.

    An ``IterableDataset`` stays whole on each rank, with a warning: only it can divide its stream.
    """
    if _are_ranks_to_start():
        init_distributed()
    world = world_size()
    if world == 1 or isinstance(loader, _Sharded) or _is_divided(loader):
        return loader
    if isinstance(loader.dataset, IterableDataset):
        warnings.warn("an IterableDataset gives every rank the same data: let it divide them itself", stacklevel=2)
        return loader
    options: dict[str, Any] = {
        "num_workers": loader.num_workers,
        "collate_fn": loader.collate_fn,
        "pin_memory": loader.pin_memory,
        "timeout": loader.timeout,
        "worker_init_fn": loader.worker_init_fn,
        "multiprocessing_context": loader.multiprocessing_context,
        "generator": loader.generator,
        "prefetch_factor": loader.prefetch_factor,
        "persistent_workers": loader.persistent_workers,
    }
    if loader.batch_size is None or type(loader.batch_sampler) is not torch.utils.data.BatchSampler:
        batches = loader.sampler if loader.batch_size is None and loader.batch_sampler is None else loader.batch_sampler
        key = "sampler" if loader.batch_sampler is None else "batch_sampler"
        given: dict[str, Any] = {key: _Share(batches)} | ({"batch_size": None} if key == "sampler" else {})
        return _Sharded(loader.dataset, **given, **options)
    return _Sharded(
        loader.dataset,
        batch_size=loader.batch_size,
        sampler=_Share(loader.sampler),
        drop_last=loader.drop_last,
        **options,
    )


def count_samples(loader: DataLoader[Any]) -> int:
    """Return how many samples of the loader's data are this rank's: all, where each rank has all of them."""
    count = len(loader.dataset)  # type: ignore[arg-type]
    return -(-count // world_size()) if isinstance(loader, _Sharded) else count


def _are_ranks_to_start() -> bool:
    """Return whether a launcher started several ranks, which have not met; a loader's worker is none of them."""
    is_rank = "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1
    return is_rank and not dist.is_initialized() and parent_process() is None


def _is_divided(loader: DataLoader[Any]) -> bool:
    """Return whether the loader's sampler gives each rank a share already, as ``DistributedSampler`` does."""
    samplers = (loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None))
    return any(isinstance(s, DistributedSampler) or hasattr(s, "num_replicas") for s in samplers)


class _Sharded(DataLoader[Any]):
    """A loader that has its rank's share."""


class _Share(Sampler[Any]):
    """Every n-th item of a sampler, from the rank's own on: all ranks have as many."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        items = _drawn_as_on_rank_0(self.sampler)
        world, rank = dist.get_world_size(), dist.get_rank()
        missing = -len(items) % world
        items += (items * missing)[:missing]
        yield from items[rank::world]

    def __len__(self) -> int:
        return -(-len(self.sampler) // dist.get_world_size())

    def __getattr__(self, name: str) -> Any:
        if name == "sampler":
            raise AttributeError(name)
        return getattr(self.sampler, name)


def _drawn_as_on_rank_0(sampler: Any) -> list[Any]:
    """Return the items of a sampler, the same on every rank. Collective.

    Ranks with other random states than rank 0 keep them; those with the same one draw from it as rank 0 does.
    """
    own = torch.get_rng_state()
    state = from_rank_0(own)
    torch.set_rng_state(state)
    items = list(sampler)
    if not torch.equal(state, own):
        torch.set_rng_state(own)
    return items
