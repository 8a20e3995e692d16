"""Samplers to build data loaders from: repeat, share among ranks, skip, shuffle reproducibly.

Combine them in this order: shuffle, repeat, share, skip.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch.utils.data

__all__ = [
    "DistributedBatchSampler",
    "DistributedSampler",
    "RepeatBatchSampler",
    "RepeatSampler",
    "ReproducibleShuffleBatchSampler",
    "ReproducibleShuffleSampler",
    "SkipBatchSampler",
    "SkipSampler",
]


class _Sized(torch.utils.data.Sampler[Any]):
    """A sampler around another one, of the same length."""

    def __init__(self, inner: Iterable[Any]) -> None:
        self._sampler: Any = inner

    def __len__(self) -> int:
        return len(self._sampler)


class RepeatSampler(_Sized):
    """Endless repetition of another sampler. Its length is one pass."""

    def __init__(self, sampler: Iterable[Any]) -> None:
        super().__init__(sampler)

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self._sampler


class DistributedSampler(_Sized):
    """Every ``num_workers``-th sample of another sampler, starting with number ``rank``.

    Unlike torch's sampler of this name it takes any sampler, also an endless one, and neither shuffles nor pads.
    """

    def __init__(self, sampler: Iterable[Any], num_workers: int, rank: int) -> None:
        super().__init__(sampler)
        self._num_workers = num_workers
        self._rank = rank

    def __len__(self) -> int:
        return _share(len(self._sampler), self._num_workers, self._rank)

    def __iter__(self) -> Iterator[Any]:
        for index, sample in enumerate(self._sampler):
            if index % self._num_workers == self._rank:
                yield sample


class SkipSampler(_Sized):
    """Another sampler without its first ``skip`` samples. Its length is the other's."""

    def __init__(self, sampler: Iterable[Any], skip: int) -> None:
        super().__init__(sampler)
        self._skip = skip

    def __iter__(self) -> Iterator[Any]:
        yield from _skip(self._sampler, self._skip)


class _SizedBatches(torch.utils.data.BatchSampler):
    """A batch sampler around another one, of the same length."""

    def __init__(self, batch_sampler: Iterable[Any]) -> None:
        self.batch_sampler: Any = batch_sampler

    def __len__(self) -> int:
        return len(self.batch_sampler)


class RepeatBatchSampler(_SizedBatches):
    """:class:`RepeatSampler` for batches."""

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self.batch_sampler


class DistributedBatchSampler(_SizedBatches):
    """:class:`DistributedSampler` for batches.

    Raises:
        ValueError: when ``rank`` is not in 0..num_workers-1.
    """

    def __init__(self, batch_sampler: Iterable[Any], num_workers: int, rank: int) -> None:
        if rank < 0:
            raise ValueError(f"rank must be non-negative, got {rank}.")
        if num_workers < 1:
            raise ValueError(f"num_workers must be greater than zero, got {num_workers}.")
        if rank >= num_workers:
            raise ValueError(f"rank must be less than num_workers, got rank={rank} and num_workers={num_workers}.")
        super().__init__(batch_sampler)
        self.num_workers = num_workers
        self.rank = rank

    def __len__(self) -> int:
        return _share(len(self.batch_sampler), self.num_workers, self.rank)

    def __iter__(self) -> Iterator[Any]:
        for index, batch in enumerate(self.batch_sampler):
            if index % self.num_workers == self.rank:
                yield batch


class SkipBatchSampler(_SizedBatches):
    """:class:`SkipSampler` for batches."""

    def __init__(self, batch_sampler: Iterable[Any], skip: int) -> None:
        super().__init__(batch_sampler)
        self.skip = skip

    def __iter__(self) -> Iterator[Any]:
        yield from _skip(self.batch_sampler, self.skip)


class ReproducibleShuffleSampler(_Sized):
    """Shuffled order of another (finite) sampler, from a separate generator, new at every pass."""

    def __init__(self, sampler: Iterable[Any], seed: int) -> None:
        super().__init__(sampler)
        self._rng = np.random.RandomState(seed)

    def __iter__(self) -> Iterator[Any]:
        indices = list(self._sampler)
        self._rng.shuffle(indices)
        return iter(indices)


class ReproducibleShuffleBatchSampler(_SizedBatches):
    """Shuffled order of whole batches. :class:`ReproducibleShuffleSampler` mixes better: it shuffles samples."""

    def __init__(self, batch_sampler: Iterable[Any], seed: int) -> None:
        super().__init__(batch_sampler)
        self._rng = np.random.RandomState(seed)

    def __iter__(self) -> Iterator[Any]:
        batches = list(self.batch_sampler)
        self._rng.shuffle(batches)
        return iter(batches)


def _share(total: int, num_workers: int, rank: int) -> int:
    return total // num_workers + int(total % num_workers > rank)


def _skip(iterable: Iterable[Any], count: int) -> Iterator[Any]:
    iterator = iter(iterable)
    for _ in range(count):
        if next(iterator, _END) is _END:
            return
    yield from iterator


_END = object()
