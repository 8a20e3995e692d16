"""Endless, resumable batch sampler of a training loader.

A shuffling sampler draws the order of a pass from the global generators when the pass begins. To continue in the middle
of a pass, the stream remembers the generators' state at the beginning of each pass that is still being read; a resumed
stream draws the same order again, steps over what was read, and leaves the generators as it found them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch.utils.data

from trial_runtime.pytorch._data import rng as _rng


class ResumableBatchSampler(torch.utils.data.BatchSampler):
    """Endless repetition of a batch sampler; yields every ``replicas``-th batch, from number ``rank`` on.

    Args:
        batch_sampler: a finite batch sampler.
        replicas: number of data-parallel ranks.
        rank: data-parallel rank.
        skip: batches of this rank that were read before.
        passes: :meth:`state` of the stream that was interrupted.
        sync_rng: makes the ranks' random states at the beginning of a pass one, see :class:`SamplerRngSync`.
    """

    def __init__(
        self,
        batch_sampler: Any,
        replicas: int = 1,
        rank: int = 0,
        skip: int = 0,
        passes: list[dict[str, Any]] | None = None,
        sync_rng: Callable[[int, dict[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        self.batch_sampler = batch_sampler
        self.replicas = replicas
        self.rank = rank
        self.skip = skip
        self.sync_rng = sync_rng
        self._recorded = {int(item["start"]): item["rng"] for item in passes or []}
        self._passes: list[tuple[int, dict[str, Any]]] = []

    def __len__(self) -> int:
        length = len(self.batch_sampler)
        return length // self.replicas + int(length % self.replicas > self.rank)

    def __iter__(self) -> Iterator[Any]:
        first = self.skip * self.replicas  # of all ranks' batches, the first that was not read
        index = 0
        if self._recorded and _draws_only_globally(self.batch_sampler):
            index = min(self._recorded)  # nothing of the earlier passes lives on
        while True:
            started = index
            for index, batch in enumerate(self._one_pass(started, first), started + 1):
                if index > first and (index - 1) % self.replicas == self.rank:
                    yield batch
            if index == started:
                raise ValueError(
                    f"The training batch sampler ({type(self.batch_sampler).__name__}) gave no batch in a whole pass."
                )

    def _one_pass(self, start: int, first: int) -> Iterator[Any]:
        """Iterate the batch sampler once, with the recorded random state if there is one."""
        before = _rng.get_state(device=False)
        recorded = self._recorded.get(start)
        if recorded is None and self.sync_rng is not None:
            agreed = self.sync_rng(start, before)
            recorded = agreed if not _rng.same(agreed, before) else None
        elif self.sync_rng is not None and start % self.replicas == self.rank:
            self.sync_rng(start, self._recorded[start])  # others may not have begun this pass when it was interrupted
        self._passes.append((start, recorded or before))
        last_read = (self.skip - 1) * self.replicas + self.rank
        if recorded is None and start > last_read:  # it had not begun
            yield from self.batch_sampler
            return
        if recorded is not None:
            _rng.set_state(recorded)
        iterator = iter(self.batch_sampler)
        ended = False
        for index in range(start, max(first, start) + 1):  # at least the first one: that is when samplers draw
            try:
                batch = next(iterator)
            except StopIteration:
                ended = True
                break
            if index < first:
                yield batch  # not used, only counted
        _rng.set_state(before)
        if not ended:
            yield batch
            yield from iterator

    def state(self, taken: int) -> list[dict[str, Any]]:
        """Return the passes that batch number ``taken`` of this rank and later ones come from, as far as they have
        begun."""
        first = taken * self.replicas
        while len(self._passes) > 1 and self._passes[1][0] <= first:
            del self._passes[0]
        begun = self._passes or self._recorded.items()  # nothing was read since the stream was resumed
        return [{"start": start, "rng": rng} for start, rng in begun]


def _draws_only_globally(batch_sampler: Any) -> bool:
    """Return whether every pass depends on the global generators alone: torch's samplers without a generator."""
    if type(batch_sampler) is not torch.utils.data.BatchSampler:
        return False
    sampler = batch_sampler.sampler
    if type(sampler) is torch.utils.data.SequentialSampler:
        return True
    return type(sampler) is torch.utils.data.RandomSampler and sampler.generator is None
