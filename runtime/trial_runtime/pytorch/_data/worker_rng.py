"""The random generators of a training loader's workers, kept across a resume.

A worker has its own generators for as long as it lives, so what it draws for a batch depends on all batches
that it loaded before. Each batch therefore brings along how its worker's generators were after it. To resume, a loader
starts at a batch at which the first worker was on turn, so that every worker gets the batches that it would have got;
the few that were trained already are loaded once more and dropped, and each worker's generators are set to what they
were. A run that is not interrupted draws what it would draw without any of this.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.utils.data

from trial_runtime.pytorch._checkpoints.restricted_load import load_arrays


class WorkerRng:
    """States of the generators of a loader's workers.

    Args:
        workers: number of worker processes; 0: the main process loads, whose generators the checkpoint has anyway.
        taken: batches that were read from the start of training.
        state: :meth:`state_dict` of the loader that was interrupted. One of another number of workers is of no use:
            then the workers begin new states.
    """

    def __init__(self, workers: int, taken: int, state: dict[str, Any] | None = None) -> None:
        if state is None or state["workers"] != workers or workers == 0:
            state = {"workers": workers, "start": taken, "seeds": None, "streams": {}}
        self.workers = workers
        self._start = int(state["start"])
        self._seeds: torch.Tensor | None = state["seeds"]
        self._states: dict[int, bytes] = dict(state["streams"])
        self.dropped = taken - self.first(taken)

    def first(self, taken: int) -> int:
        """Return the batch to start a loader at, so that batch number ``taken`` comes from the worker that it belongs
        to."""
        return taken - (taken - self._start) % self.workers if self.workers else taken

    def open(self, make: Callable[[], Any]) -> Any:
        """Call ``make`` for an iterator with new workers, or with the seeds of those that were interrupted."""
        now = torch.random.get_rng_state()
        if self._seeds is None:
            self._seeds = now
            return make()
        torch.random.set_rng_state(self._seeds)
        try:
            return make()
        finally:
            torch.random.set_rng_state(now)

    def record(self, batch: int, state: bytes) -> None:
        """Record the state of the generators of batch number ``batch``'s worker after it."""
        self._states[(batch - self._start) % self.workers] = state

    def state_dict(self) -> dict[str, Any]:
        """Return the generators' states after the batches that were read."""
        return {"workers": self.workers, "start": self._start, "seeds": self._seeds, "streams": dict(self._states)}

    def in_worker(
        self, collate: Callable[[list[Any]], Any], initialize: Callable[[int], None] | None
    ) -> tuple[Callable[[list[Any]], Any], Callable[[int], None]]:
        """Wrap the loader's ``collate_fn``, to return ``(batch, state)``, and its ``worker_init_fn``."""
        return _Collate(collate, self.dropped, self._states), _Initialize(initialize, self._states)


class _Initialize:
    """Start of a worker: the trial's ``worker_init_fn``, then the generators that the worker had."""

    def __init__(self, initialize: Callable[[int], None] | None, states: dict[int, bytes]) -> None:
        self.initialize = initialize
        self.states = dict(states)

    def __call__(self, worker: int) -> None:
        if self.initialize is not None:
            self.initialize(worker)
        if worker in self.states:
            _set(self.states[worker])


class _Collate:
    """The end of loading a batch. Lives in each worker on its own."""

    def __init__(self, collate: Callable[[list[Any]], Any], dropped: int, states: dict[int, bytes]) -> None:
        self.collate = collate
        self.dropped = dropped
        self.states = dict(states)

    def __call__(self, samples: list[Any]) -> tuple[Any, bytes]:
        information = torch.utils.data.get_worker_info()
        assert information is not None
        if information.id < self.dropped:  # loaded before; what it drew is taken back
            self.dropped = 0
            _set(self.states[information.id])
            return None, self.states[information.id]
        return self.collate(samples), _get()


def _get() -> bytes:
    return pickle.dumps((random.getstate(), np.random.get_state(), torch.random.get_rng_state().numpy()), protocol=5)


def _set(state: bytes) -> None:
    python, numpy, own = load_arrays(state)  # from a checkpoint, maybe
    random.setstate(python)
    np.random.set_state(numpy)
    torch.random.set_rng_state(torch.from_numpy(own.copy()))
