"""Synchronized random state of samplers: one order of the data on all ranks.

The generators start alike, but a rank that had a smaller batch, or evaluated alone, has drawn differently since. Ranks
with different orders would train some samples twice and others never. So the rank that begins a pass first publishes
its generators' state in the store of torch.distributed, and the others draw the order from the same. Where the ranks
are in step, which is the rule, this changes nothing. The state is JSON: a store's content must never run as code.
"""

from __future__ import annotations

import datetime
import itertools
import logging
from typing import Any

import torch.distributed as dist

from trial_runtime.pytorch._data import rng

logger = logging.getLogger("trial_runtime.pytorch")

_TIMEOUT = datetime.timedelta(seconds=60)
_runs = itertools.count()
_run, _numbers = next(_runs), itertools.count()


def begin_run() -> None:
    """Count the agreements of a new run of this process from the start; called on every rank.

    In the run before not every rank may have loaded data.
    """
    global _run, _numbers
    _run, _numbers = next(_runs), itertools.count()


class SamplerRngSync:
    """Agreement on the random state at the beginning of each pass over the data.

    No deadlock is possible: of the ranks that need a pass after the fewest batches the lowest one publishes its
    state, and it never waits. Made by all ranks that load data, in the same order.

    Args:
        replicas: number of data-parallel ranks.
        rank: data-parallel rank.
    """

    def __init__(self, replicas: int, rank: int) -> None:
        self.replicas = replicas
        self.rank = rank
        self._name = f"{_run}.{next(_numbers)}"
        self._store: Any = None
        if replicas > 1 and dist.is_initialized():
            self._store = dist.distributed_c10d._get_default_store()

    def __call__(self, start: int, own: dict[str, Any]) -> dict[str, Any]:
        """Return the random state to draw a pass from.

        Args:
            start: number of the pass's first batch among the batches of all ranks.
            own: this rank's state.
        """
        if self._store is None:
            return own
        key = f"trial_runtime/passes/{self._name}/{start}"
        if start % self.replicas == self.rank:
            agreed = self._store.compare_set(key, "", rng.to_json(own))
        else:
            try:
                self._store.wait([key], _TIMEOUT)
            except RuntimeError:  # torch.distributed.DistStoreError
                logger.warning(
                    "The ranks do not read their data in step; this rank shuffles with its own random state."
                )
                return own
            agreed = self._store.get(key)
        return rng.from_json(agreed.decode())
