"""Loading without workers: what torch's iterator does for a map-style dataset, at a quarter of its overhead."""

from __future__ import annotations

from typing import Any

import torch.autograd.profiler
import torch.utils.data

_NAME = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
"""What torch's iterator is called in a profile; TensorBoard's profiler sums up the time for data by it."""


class InProcessIterator:
    """Loads the batches of a torch loader that has no workers and pins no memory.

    Torch's own iterator notes every batch for the profiler, whether one runs or not: 10 microseconds and more. It is
    made here as well, because it draws from the random generators then, and the trial's numbers follow from them.

    Args:
        loader: over a map-style dataset, with a batch sampler.
    """

    def __init__(self, loader: torch.utils.data.DataLoader[Any]) -> None:
        iter(loader)
        batches: Any = loader.batch_sampler
        self._indices = iter(batches)
        self._dataset: Any = loader.dataset
        self._all_at_once = getattr(loader.dataset, "__getitems__", None)
        self._collate = loader.collate_fn

    def __iter__(self) -> InProcessIterator:
        return self

    def __next__(self) -> Any:
        if getattr(torch.autograd.profiler, "_is_profiler_enabled", True):  # torch does not promise that name
            with torch.autograd.profiler.record_function(_NAME):
                return self._load()
        return self._load()

    def _load(self) -> Any:
        indices = next(self._indices)
        if self._all_at_once:
            return self._collate(self._all_at_once(indices))
        dataset = self._dataset
        return self._collate([dataset[index] for index in indices])
