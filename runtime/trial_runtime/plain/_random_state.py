"""Random numbers that all ranks draw alike."""

from __future__ import annotations

import random

import numpy as np
import torch

from trial_runtime.plain._agreement import from_rank_0, world_size


def share_random_state() -> None:
    """Have all ranks draw rank 0's random numbers from now on: torch's, Python's and NumPy's. Collective.

    A script that sets no seed would otherwise divide its data, and make what no engine broadcasts (targets, averages of
    weights, generated data), differently on each rank.
    """
    if world_size() == 1:
        return
    torch.set_rng_state(from_rank_0(torch.get_rng_state()))
    if torch.cuda.is_available():
        torch.cuda.set_rng_state(from_rank_0(torch.cuda.get_rng_state()))
    version, words, _ = random.getstate()
    random.setstate((version, tuple(from_rank_0(torch.tensor(words)).tolist()), None))
    name, keys, position, *_ = np.random.get_state(legacy=True)
    shared = from_rank_0(torch.tensor([*map(int, keys), int(position)])).tolist()
    np.random.set_state((name, np.array(shared[:-1], dtype=np.uint32), shared[-1], 0, 0.0))
