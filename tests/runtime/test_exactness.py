"""A trial on DeepSpeed engines comes to the numbers that it comes to as a PyTorchTrial."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import toys
from distributed import run_ranks
from trial_runtime import pytorch

PAIRS = {
    "simple": (toys.SimplePT, toys.SimpleDS),
    "gan": (toys.GanPT, toys.GanDS),
    "parts": (toys.PartsPT, toys.PartsDS),
}


def compare(name: str, stage: int, k: int, **hparams: Any) -> None:
    original, converted = PAIRS[name]
    with tempfile.TemporaryDirectory() as folder:
        epochs = {"max_length": pytorch.Epoch(3), "validation_period": pytorch.Epoch(1)}
        a = toys.fit(original, {"k": k, **hparams}, Path(folder) / "a", **epochs)
        b = toys.fit(converted, {"k": k, "stage": stage, **hparams}, Path(folder) / "b", **epochs)
    label = f"{name}, stage {stage}, k {k}, {hparams}"
    assert toys.difference(a.state, b.state) <= 1e-6, f"{label}: {toys.difference(a.state, b.state)}"
    if torch.distributed.is_initialized() and torch.distributed.get_rank() > 0:
        return
    assert toys.metric_difference(a.training, b.training) <= 1e-6, label
    assert [steps for steps, _ in a.validation] == [steps * k for steps, _ in b.validation], label
    without = [[{k: v for k, v in m.items() if k != "batches"} for _, m in run.validation] for run in (a, b)]
    assert toys.metric_difference(*without) <= 1e-6, label


# Stage and accumulation: each pair of values is met on one rank or on two; equivalence/ has the others.
ON_ONE_RANK, ON_TWO_RANKS = [(0, 1), (1, 2)], [(0, 2), (1, 1)]


@pytest.mark.parametrize("name", PAIRS)
def test_one_rank_is_the_original(name: str) -> None:
    on_this_rank(name, ON_ONE_RANK)


def on_this_rank(name: str, layouts: list[tuple[int, int]]) -> None:
    for stage, k in layouts:
        compare(name, stage, k)


@pytest.mark.parametrize("name", PAIRS)
def test_two_ranks_are_the_original(name: str) -> None:
    run_ranks(on_this_rank, name, ON_TWO_RANKS)


def clipped_at_every_stage() -> None:
    for stage in (0, 1, 2, 3):
        compare("simple", stage, 2, clip=0.05)


def test_clipping_and_sharding_at_every_stage_are_the_original() -> None:
    run_ranks(clipped_at_every_stage)
