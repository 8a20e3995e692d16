"""Data: the loader that a trial describes, and moving batches to a device."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import torch
import torch.utils.data

from trial_runtime.pytorch import samplers
from trial_runtime.pytorch._data.epoch_replay import ResumableBatchSampler
from trial_runtime.pytorch._data.sampler_rng_sync import SamplerRngSync
from trial_runtime.pytorch._data.worker_rng import WorkerRng

logger = logging.getLogger("trial_runtime.pytorch")

_Array: TypeAlias = "np.ndarray[Any, Any] | torch.Tensor"
TorchData: TypeAlias = "dict[str, torch.Tensor] | Sequence[torch.Tensor] | torch.Tensor"
"""A batch: a tensor, or a dict or sequence of tensors."""

_ITERABLE_DATASET = (
    "pytorch.DataLoader needs a dataset with indices; got the IterableDataset {name}. Return a "
    "torch.utils.data.DataLoader and call {call} in the trial's __init__; sharing among ranks, shuffling and "
    "resuming are then the trial's task."
)


class DataLoader:
    """Arguments of ``torch.utils.data.DataLoader``, kept until the training loop knows rank and position.

    The trial's ``build_*_data_loader`` return one; the loop shares it among the ranks (batch by batch, in turn),
    repeats it for training and steps over what was trained before. It can also be iterated itself: one pass, not
    shared.

    Args:
        dataset: a map-style dataset.
        batch_size: samples a rank and micro-batch.
        shuffle: draw a new order at every pass, the same on all ranks.
        sampler: gives indices, instead of ``shuffle``.
        batch_sampler: gives lists of indices, instead of ``batch_size``, ``shuffle``, ``sampler`` and ``drop_last``.
        drop_last: leave out a last batch that is not full.

    All others are as for torch's loader.

    Raises:
        ValueError: for an IterableDataset, and for combinations that torch's loader refuses.
    """

    def __init__(
        self,
        dataset: torch.utils.data.Dataset[Any],
        batch_size: int | None = 1,
        shuffle: bool = False,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
    ) -> None:
        if isinstance(dataset, torch.utils.data.IterableDataset):
            call = "context.disable_dataset_reproducibility_checks()"
            raise ValueError(_ITERABLE_DATASET.format(name=type(dataset).__name__, call=call))
        if batch_sampler is None and batch_size is None:
            raise ValueError(
                "pytorch.DataLoader needs a batch_size or a batch_sampler: ranks share the data batch by batch."
            )
        if num_workers == 0 and prefetch_factor is not None:
            raise ValueError(f"prefetch_factor={prefetch_factor} needs num_workers > 0.")
        if num_workers == 0 and persistent_workers:
            raise ValueError("persistent_workers=True needs num_workers > 0.")
        # torch checks the rest and makes the samplers; the loader itself is not used.
        made = torch.utils.data.DataLoader(
            dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            num_workers=num_workers,
            collate_fn=collate_fn,
            drop_last=drop_last,
            timeout=timeout,
            multiprocessing_context=multiprocessing_context,
            generator=generator,
        )
        self.dataset = dataset
        self.batch_size = None if batch_sampler is not None else batch_size
        self.sampler = sampler if sampler is not None else made.sampler
        self.batch_sampler: Any = made.batch_sampler
        self.num_workers = num_workers
        self.collate_fn = made.collate_fn
        self.pin_memory = pin_memory
        self.drop_last = drop_last
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self.generator = generator
        self.prefetch_factor = prefetch_factor
        self.persistent_workers = persistent_workers

    def get_data_loader(
        self, repeat: bool = False, skip: int = 0, num_replicas: int = 1, rank: int = 0
    ) -> torch.utils.data.DataLoader[Any]:
        """Make a torch loader of this rank's share.

        Args:
            repeat: start again without end.
            skip: leave out this many of the rank's batches.
            num_replicas: number of data-parallel ranks.
            rank: data-parallel rank.
        """
        return self._loader(adapt_batch_sampler(self.batch_sampler, repeat, skip, num_replicas, rank))

    def _training_loader(
        self,
        num_replicas: int,
        rank: int,
        skip: int,
        passes: list[dict[str, Any]] | None,
        worker_rng: WorkerRng,
    ) -> tuple[torch.utils.data.DataLoader[Any], ResumableBatchSampler]:
        """Make the endless loader of this rank's share from batch ``skip`` on, and its batch sampler.

        With workers it gives pairs of a batch and what :class:`WorkerRng` follows.
        """
        sync_rng = SamplerRngSync(num_replicas, rank)
        stream = ResumableBatchSampler(self.batch_sampler, num_replicas, rank, skip, passes, sync_rng)
        if not self.num_workers:
            return self._loader(stream), stream
        collate, initialize = worker_rng.in_worker(self.collate_fn, self.worker_init_fn)
        return self._loader(stream, collate_fn=collate, worker_init_fn=initialize), stream

    def _loader(self, batch_sampler: Any, **changed: Any) -> torch.utils.data.DataLoader[Any]:
        given: dict[str, Any] = {"collate_fn": self.collate_fn, "worker_init_fn": self.worker_init_fn, **changed}
        return torch.utils.data.DataLoader(
            self.dataset,
            batch_sampler=batch_sampler,
            num_workers=self.num_workers,
            pin_memory=self.pin_memory,
            timeout=self.timeout,
            multiprocessing_context=self.multiprocessing_context,
            generator=self.generator,
            prefetch_factor=self.prefetch_factor,
            persistent_workers=self.persistent_workers,
            **given,
        )

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get_data_loader())

    def __len__(self) -> int:
        return len(self.batch_sampler)


def adapt_batch_sampler(
    batch_sampler: Any, repeat: bool = False, skip: int = 0, num_replicas: int = 1, rank: int = 0
) -> Any:
    """Adapt a batch sampler for a torch loader, in this order.

    Args:
        batch_sampler: gives lists of indices.
        repeat: start again without end.
        num_replicas: give every ``num_replicas``-th batch,
        rank: from this number on.
        skip: leave out this many batches of the rank's share.
    """
    if repeat:
        batch_sampler = samplers.RepeatBatchSampler(batch_sampler)
    if num_replicas > 1:
        batch_sampler = samplers.DistributedBatchSampler(batch_sampler, num_replicas, rank)
    if skip > 0:
        batch_sampler = samplers.SkipBatchSampler(batch_sampler, skip)
    return batch_sampler


# Written out here: a union made in a call takes longer than the check.
_ARRAYS = (torch.Tensor, np.ndarray)
_CONTAINERS = (list, tuple, dict)


def data_length(data: Any) -> int:
    """Return the number of samples in a batch.

    Args:
        data: an array or tensor; or a dict, list or tuple, of which the first item counts.

    Raises:
        ValueError: for an empty dict, list or tuple.
        TypeError: for anything else; override the trial's ``get_batch_length`` then.
    """
    if isinstance(data, _ARRAYS):
        return len(data)
    if isinstance(data, _CONTAINERS):
        if not data:
            raise ValueError(f"A batch must hold at least one array, got an empty {type(data).__name__}.")
        first = next(iter(data.values())) if isinstance(data, dict) else data[0]
        return first.shape[0] if isinstance(first, _ARRAYS) and first.ndim else len(first)
    raise TypeError(
        f"Data of incorrect type: {type(data)}. Override the trial's get_batch_length() to return the length."
    )


def to_device(data: Any, device: torch.device, warned_types: set[type] | None = None) -> Any:
    """Move a batch to a device.

    Dicts, lists and tuples are walked; numpy arrays of numbers become tensors; anything with a method ``to`` is moved
    by it. Other objects stay as they are, with one warning a type.

    Args:
        data: the batch.
        device: where to.
        warned_types: types that were warned about; grown in place.
    """
    if isinstance(data, torch.Tensor):  # first, because it is the most frequent
        return data.to(device)
    warned = set() if warned_types is None else warned_types
    if isinstance(data, dict):
        return {key: to_device(value, device, warned) for key, value in data.items()}
    if isinstance(data, list):  # most batches are lists of tensors
        return [
            value.to(device) if isinstance(value, torch.Tensor) else to_device(value, device, warned) for value in data
        ]
    if isinstance(data, tuple):
        return tuple(to_device(value, device, warned) for value in data)
    if isinstance(data, np.ndarray) and data.dtype.kind in "fciub":
        return torch.from_numpy(data).to(device)
    if callable(getattr(data, "to", None)):
        return cast(Any, data).to(device)
    if type(data) not in warned:
        warned.add(type(data))
        logger.warning(f"Was not able to move data item of type '{type(data).__name__}' to device.")
    return data
