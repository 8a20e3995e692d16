"""The draws of the master for each trial of a search: hyperparameters, request id and seed.

The master has one random stream a search, and each trial that is created takes its draws from it in the same order. So
the trials of a search are a list that its seed and its hyperparameters fix; schedules and reports only decide which of
them are created, and when.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trial_runtime.search.space import Sampler, grid_points, sample, to_json_numbers


@dataclass(frozen=True)
class TrialDraw:
    """The draws of one trial.

    Attributes:
        request_id: the UUID under which the master knew the trial.
        seed: seeds Python's, numpy's and torch's generators on every rank, below 2**31.
        hparams: the hyperparameters as the trial's code sees them: integral floats are ints.
    """

    request_id: str
    seed: int
    hparams: dict[str, Any]


class MasterRandom(Sampler):
    """The master's generator, which is numpy's legacy one."""

    def __init__(self, seed: int) -> None:
        if not 0 <= seed < 2**32:
            raise ValueError(f"a seed of a search is from 0 to 4294967295, not {seed}")
        self._state = np.random.RandomState(seed)

    def integer(self, count: int) -> int:
        """Return an integer from 0 to ``count`` - 1."""
        return int(self._state.randint(0, count, dtype=np.int64))

    def uniform(self, low: float, high: float) -> float:
        """Return a float of [low, high)."""
        return float(self._state.uniform(low, high))

    def request_id(self) -> str:
        """Return a random UUID of version 4."""
        return str(uuid.UUID(bytes=self._state.bytes(16), version=4))


def draw_trials(seed: int, hyperparameters: Mapping[str, Any], grid: bool = False) -> Iterator[TrialDraw]:
    """Return the draws of the first, second, ... trial that the search creates.

    Args:
        seed: ``reproducibility.experiment_seed``, 0 to 2**32 - 1.
        hyperparameters: the section of the experiment config, with its search spaces.
        grid: take points of the grid, from its end, instead of sampling; the iterator then ends with the grid.
    """
    random = MasterRandom(seed)
    points = reversed(list(grid_points(hyperparameters))) if grid else None
    while True:
        if points is None:
            hparams = sample(hyperparameters, random)
        else:
            point = next(points, None)
            if point is None:
                return
            hparams = point
        request_id = random.request_id()
        yield TrialDraw(request_id, random.integer(2**31), to_json_numbers(hparams))
