"""``trial_runtime.plain`` on several ranks: numbers, decisions, random states and data on which they agree."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from distributed import run_ranks


def agreed() -> dict[str, object]:
    import torch.distributed as dist
    from torch.utils.data import DataLoader
    from trial_runtime.plain import count_samples, mean_over_ranks, rank_0_decides, rank_0_text, shard

    rank = dist.get_rank()
    whole: DataLoader[int] = DataLoader(range(5))  # type: ignore[arg-type]
    half = mean_over_ranks(torch.tensor([rank, float("nan") if rank else 1.0], dtype=torch.float16))
    return {
        "number": mean_over_ranks(rank),
        "tensor": half.tolist(),
        "type": half.dtype,
        "decision": rank_0_decides([] if rank else [0]),
        "text": rank_0_text(f"of rank {rank}"),
        "samples": (count_samples(whole), count_samples(shard(whole))),
    }


def test_ranks_agree_on_means_and_on_rank_0s_decision() -> None:
    first, second = run_ranks(agreed)
    assert first["number"] == second["number"] == 0.5
    assert first["text"] == second["text"] == "of rank 0"
    assert first["samples"] == second["samples"] == (5, 3)
    assert first["type"] is second["type"] is torch.float16
    for result in (first, second):
        half, not_a_number = result["tensor"]
        assert (half, result["decision"]) == (0.5, True)
        assert not_a_number != not_a_number


def test_one_rank_keeps_its_own() -> None:
    from trial_runtime.plain import mean_over_ranks, rank_0_decides

    loss = torch.tensor(0.1, requires_grad=True)
    assert mean_over_ranks(loss) is loss
    assert mean_over_ranks(0.1) == 0.1
    assert rank_0_decides(loss > 0) is True


def draws(seed: int) -> tuple[list[float], list[float]]:
    import torch.distributed as dist
    from torch.utils.data import DataLoader, random_split
    from trial_runtime.plain import shard
    from trial_runtime.plain._random_state import share_random_state

    for set_seed in (torch.manual_seed, random.seed, np.random.seed):
        set_seed(seed + dist.get_rank())
    share_random_state()
    drawn = [random.random(), float(np.random.rand()), torch.rand(()).item(), random.gauss(0, 1)]
    data: Any = torch.arange(8.0)
    train = random_split(data, [6, 2])[0]
    return drawn, [batch.item() for batch in shard(DataLoader(train, batch_size=1, shuffle=True))]


def test_ranks_that_set_no_seed_draw_and_divide_alike() -> None:
    (drawn, share), (also_drawn, other_share) = run_ranks(draws, 3)
    assert drawn == also_drawn
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    assert drawn[:3] == pytest.approx([random.random(), np.random.rand(), torch.rand(()).item()], abs=0)
    assert len({*share, *other_share}) == 6  # both have the same six of eight, and no sample twice
