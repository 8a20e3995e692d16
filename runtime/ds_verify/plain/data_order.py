"""One order of the data for both sides, whichever sampler draws it, and a loader's share of it on each rank.

A conversion for several ranks puts a ``DistributedSampler`` where ``shuffle=True`` was. The two draw from different
random numbers. Here both draw the same: the k-th pass of a shuffling sampler is the permutation of seed k. A
``DistributedSampler`` advances only when ``set_epoch`` names an epoch that it has not seen, as it does otherwise.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any
from unittest import mock

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
)
from trial_runtime.plain._loader import batch_of_order, drawn_at_once, share_of

_SEED = 1000
"""Added to the number of a pass."""


def permutation(length: int, number: int) -> list[int]:
    """Return the order of a shuffled pass, counted from 0: what ``DistributedSampler`` draws from the same seed."""
    order: list[int] = torch.randperm(length, generator=torch.Generator().manual_seed(_SEED + number)).tolist()
    return order


class Shard(DistributedSampler[Any]):
    """A rank's share of a data set, in another order in each pass if it is shuffled."""

    def __init__(self, dataset: Any, ranks: int, rank: int, shuffle: bool) -> None:
        super().__init__(dataset, ranks, rank, shuffle)
        self._passes = 0

    def __iter__(self) -> Iterator[Any]:
        self.set_epoch(self._passes)
        self._passes += 1
        return super().__iter__()


@contextlib.contextmanager
def one_order() -> Iterator[None]:
    """Have all samplers that shuffle a whole data set draw the same orders, for the block."""
    shuffled, shared = RandomSampler.__iter__, DistributedSampler.__iter__

    @functools.wraps(shuffled)
    def random_order(self: Any) -> Iterator[int]:
        if self.replacement or self.num_samples != len(self.data_source):
            return shuffled(self)
        self._ds_verify_passes = getattr(self, "_ds_verify_passes", -1) + 1
        return iter(permutation(len(self.data_source), self._ds_verify_passes))

    @functools.wraps(shared)
    def shard_order(self: Any) -> Iterator[Any]:
        numbers = self.__dict__.setdefault("_ds_verify_epochs", {})
        seed, epoch = self.seed, self.epoch
        self.seed, self.epoch = _SEED, numbers.setdefault(epoch, len(numbers))
        try:
            return shared(self)
        finally:
            self.seed, self.epoch = seed, epoch

    with (
        mock.patch.object(RandomSampler, "__iter__", random_order),
        mock.patch.object(DistributedSampler, "__iter__", shard_order),
    ):
        yield


class EveryNth(Sampler[Any]):
    """A rank's share of what another sampler draws, which all ranks draw alike."""

    def __init__(self, sampler: Any, ranks: int, rank: int, size: int = 1) -> None:
        self._sampler, self._ranks, self._rank, self._size = sampler, ranks, rank, size

    def __iter__(self) -> Iterator[Any]:
        drawn, first = iter(self._sampler), list[Any]()
        while items := list(islice(drawn, drawn_at_once(self._ranks, self._size))):
            first = first or items[: self._ranks]
            yield from share_of(items, first, self._ranks, self._rank, self._size)

    def __len__(self) -> int:
        return -(-len(self._sampler) // self._ranks)

    def __getattr__(self, name: str) -> Any:
        """Return what the other sampler has, as ``set_epoch``."""
        if name == "_sampler":
            raise AttributeError(name)
        return getattr(self._sampler, name)


def can_share(loader: DataLoader[Any]) -> bool:
    """Return whether ranks can share what the loader reads, and do not do so already."""
    samplers = (loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None))
    return not isinstance(loader.dataset, IterableDataset) and not any(hasattr(s, "num_replicas") for s in samplers)


def share(loader: DataLoader[Any], ranks: int, rank: int) -> Callable[[], None]:
    """Leave a rank its share of what a loader reads, and return what takes that back."""
    before, batches = loader.sampler, loader.batch_sampler

    def take_back() -> None:
        object.__setattr__(loader, "batch_sampler", batches)
        object.__setattr__(loader, "sampler", before)
        if type(batches) is BatchSampler:
            batches.sampler = before

    if loader.batch_sampler is not None and type(loader.batch_sampler) is not BatchSampler:
        object.__setattr__(loader, "batch_sampler", EveryNth(loader.batch_sampler, ranks, rank))
        return take_back
    given: Any = loader.sampler
    is_pass = type(given) is SequentialSampler or (
        type(given) is RandomSampler and not given.replacement and given.num_samples == len(given.data_source)
    )
    size = batch_of_order(given, loader.batch_size or 1) if type(loader.batch_sampler) is BatchSampler else 1
    sampler: Sampler[Any] = EveryNth(given, ranks, rank, size)
    if is_pass:  # once through the data set, as a DistributedSampler goes
        sampler = Shard(loader.dataset, ranks, rank, shuffle=type(given) is RandomSampler)
    object.__setattr__(loader, "sampler", sampler)  # a loader refuses a new one, but reads no other attribute
    if loader.batch_sampler is not None:
        loader.batch_sampler.sampler = sampler
    return take_back
