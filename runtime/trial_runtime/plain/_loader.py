"""Data loaders that give each rank its share of every global batch."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sized
from copy import copy
from itertools import islice
from multiprocessing import parent_process
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler
from torch.utils.data.dataloader import _BaseDataLoaderIter as _Iterator

from trial_runtime.errors import InvalidExperimentException
from trial_runtime.plain._agreement import any_rank, from_rank_0, object_from_rank_0, world_size
from trial_runtime.plain._distributed import init_distributed

_DRAWN_AT_ONCE = 16384  # items for each rank
_COUNTS_OF_RANKS = ("num_replicas", "world_size", "_world_size", "num_shards", "_num_replicas", "num_processes")
_Loader = TypeVar("_Loader", bound=DataLoader[Any] | None)


def shard(loader: _Loader) -> _Loader:
    """Return a loader whose batches are this rank's shares, of which all ranks together have the loader's batches.

    Each batch has the size that it had, and n ranks take n batches at a time: they train as one rank with batches n
    times as large. Random samplers draw as they did, on rank 0's random state. Every rank gets as many batches; the
    first samples fill up where the data cannot be divided, as ``DistributedSampler`` does it. With one rank, and for a
    loader whose sampler divides the data itself, this is the loader itself.

    The share is of the loader's class, with its attributes.

    A script that makes its loaders before it starts its ranks, at the top of its module, has them started here.

    An ``IterableDataset`` stays whole on each rank, with a warning: only it can divide its stream. None stays None, as
    a function returns it that finds nothing to train on.

    Raises:
        InvalidExperimentException: later, on all ranks, where one has more data than another, as behind a download that
            failed: only what rank 0 has would be trained.
        ValueError: the loader keeps an iterator over all data, which its batches come from.
        ValueError: a rank's share has no whole batch, and ``drop_last`` leaves no other: nothing would be trained.
    """
    if _are_ranks_to_start():
        init_distributed()
    world = world_size()
    if loader is None or world == 1 or is_share(loader) or _is_divided(loader):
        return loader
    if isinstance(loader.dataset, IterableDataset):
        warnings.warn("an IterableDataset gives every rank the same data: let it divide them itself", stacklevel=2)
        return loader
    own = [value for name, value in vars(loader).items() if name != "_iterator" and isinstance(value, _Iterator)]
    if own:
        raise ValueError(
            f"{type(loader).__name__} keeps an iterator over all data, which shard() cannot divide: "
            "give it a DistributedSampler"
        )
    if loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
        key = "sampler" if loader.batch_sampler is None else "batch_sampler"
        samplers: dict[str, Any] = {key: _Share(getattr(loader, key), loader.dataset)}
    else:
        sampler = _Share(loader.sampler, loader.dataset, batch_of_order(loader.sampler, loader.batch_size))
        if loader.drop_last and isinstance(loader.sampler, Sized):
            _check_share(len(loader.sampler), len(sampler), loader.batch_size)
        samplers = {"sampler": sampler, "batch_sampler": BatchSampler(sampler, loader.batch_size, loader.drop_last)}
    share = copy(loader)  # with the methods and attributes of its class
    vars(share).update(samplers, _iterator=None, _is_share=True)  # DataLoader refuses assignments of samplers
    return share


def count_samples(loader: DataLoader[Any]) -> int:
    """Return how many samples of the loader's data are this rank's: all, where each rank has all of them."""
    count = len(loader.dataset)  # type: ignore[arg-type]
    return -(-count // world_size()) if is_share(loader) else count


def is_share(loader: object) -> bool:
    """Return whether a loader has its rank's share, as :func:`shard` makes it."""
    return getattr(loader, "_is_share", False) is True


def _check_share(count: int, share: int, size: int) -> None:
    """Raise where all data have a batch, and a rank's share has none."""
    if share < size <= count:
        raise ValueError(
            f"a rank's share of {count} samples has {share}, and drop_last leaves out all of them, as a batch has "
            f"{size}: start fewer ranks, or make the batches smaller"
        )


def _check_data(data: object) -> None:
    """Raise on all ranks where they have other numbers of samples. Collective."""
    count = len(data) if isinstance(data, Sized) else None
    expected = object_from_rank_0(count)
    if any_rank(count != expected):
        raise InvalidExperimentException(
            f"ranks have other numbers of samples than rank 0, which has {expected}; this one, rank {dist.get_rank()}, "
            f"has {count}: let rank 0 fetch or make them before the others (with rank_0_first():), all with one seed"
        )


def _are_ranks_to_start() -> bool:
    """Return whether a launcher started several ranks, which have not met; a loader's worker is none of them."""
    is_rank = "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1
    return is_rank and not dist.is_initialized() and parent_process() is None


def _is_divided(loader: DataLoader[Any]) -> bool:
    """Return whether the loader's sampler gives each rank a share already, as ``DistributedSampler`` does."""
    return any(_counts_ranks(sampler) for sampler in _samplers_of(loader))


def _samplers_of(loader: DataLoader[Any]) -> list[Any]:
    """Return the samplers of a loader, and those that they hold."""
    found = [sampler for sampler in (loader.sampler, loader.batch_sampler) if sampler is not None]
    for sampler in found:
        held = [one for name, one in getattr(sampler, "__dict__", {}).items() if "sampler" in name]
        found += [one for one in held if not any(one is known for known in found)]
    return found


def _counts_ranks(sampler: Any) -> bool:
    """Return whether a sampler knows of several ranks; one that was made before these started knows of one."""
    counts = [getattr(sampler, name, None) for name in _COUNTS_OF_RANKS]
    return any(isinstance(count, int) and count > 1 for count in counts)


class _Share(Sampler[Any]):
    """Every n-th item of a sampler, or group of ``size`` items, from the rank's own on: all ranks have as many."""

    def __init__(self, sampler: Any, data: object, size: int = 1) -> None:
        self.sampler, self._data, self._size = sampler, data, size

    def __iter__(self) -> Iterator[Any]:
        _check_data(self._data)
        world, rank = dist.get_world_size(), dist.get_rank()
        drawn, first = iter(self.sampler), list[Any]()
        while items := _drawn_on_rank_0(drawn, drawn_at_once(world, self._size)):
            first = first or items[:world]
            yield from share_of(items, first, world, rank, self._size)

    def __len__(self) -> int:
        return -(-len(self.sampler) // dist.get_world_size())

    def __getattr__(self, name: str) -> Any:
        if name == "sampler":
            raise AttributeError(name)
        return getattr(self.sampler, name)


def batch_of_order(sampler: Any, size: int) -> int:
    """Return how many items of a sampler stay together: batches of a sampler's own class, which may be composed.

    Those that draw some items of each class, for a loss over pairs, or items of like length, do so.
    """
    return 1 if type(sampler).__module__.startswith("torch.utils.data") else size


def drawn_at_once(world: int, size: int) -> int:
    """Return how many items of a sampler are drawn before they are divided: it may be endless."""
    return world * size * max(1, _DRAWN_AT_ONCE // size)


def share_of(items: list[Any], first: list[Any], world: int, rank: int, size: int = 1) -> list[Any]:
    """Return every n-th group of ``size`` items, and of what is left every n-th item, filled up by the first ones."""
    whole = len(items) // (world * size) * world * size
    groups = range(rank * size, whole, world * size)
    missing = -len(items) % world
    left = [*items[whole:], *(first * missing)[:missing]]
    return [*(item for start in groups for item in items[start : start + size]), *left[rank::world]]


def _drawn_on_rank_0(sampler: Iterator[Any], most: int) -> list[Any]:
    """Return the next items of a sampler, rank 0's on every rank. Collective.

    Each rank draws too, so that its random generators are where they would be. Torch's draws as rank 0's does where it
    has the same state; a rank with another one keeps it.
    """
    own = torch.get_rng_state()
    state = from_rank_0(own)
    torch.set_rng_state(state)
    items = list(islice(sampler, most))
    if not torch.equal(state, own):
        torch.set_rng_state(own)
    return object_from_rank_0(items)
