"""Every sample is trained once an epoch, whatever the ranks drew in between."""

from __future__ import annotations

import json
import os
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import toys
from distributed import run_ranks
from hypothesis import given, settings
from hypothesis import strategies as st
from trial_runtime import pytorch
from trial_runtime.pytorch._data import rng
from trial_runtime.pytorch._data.epoch_replay import ResumableBatchSampler
from trial_runtime.pytorch._data.sampler_rng_sync import SamplerRngSync


class Numbered(toys.SimplePT):
    """Notes which samples each rank trains."""

    training_samples = 20

    def build_training_data_loader(self) -> Any:
        numbers = torch.arange(self.training_samples, dtype=torch.float32)
        data = torch.utils.data.TensorDataset(numbers[:, None].repeat(1, 4), numbers[:, None])
        self.trained: list[int] = []
        return pytorch.DataLoader(data, batch_size=2, shuffle=True)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        self.trained.extend(int(number) for number in batch[1])
        if self.hparam("apart", False) and self.context.distributed.rank == 1:
            torch.rand(1)  # as a smaller batch, or a validation on one rank, would
        return super().train_batch(batch, epoch_idx, batch_idx)

    def state(self) -> dict[str, Any]:
        return {"trained": torch.tensor(self.trained)}


def trained(apart: bool, folder: Path) -> list[int]:
    outcome = toys.fit(Numbered, {"apart": apart}, folder / str(apart), max_length=pytorch.Epoch(3))
    numbers: list[int] = outcome.state["trained"].tolist()
    return numbers


@pytest.mark.parametrize("apart", [False, True])
def test_ranks_share_each_epoch_without_overlap(apart: bool, tmp_path: Path) -> None:
    first, second = run_ranks(trained, apart, tmp_path)
    assert len(first) == len(second) == 30
    for epoch in range(3):
        mine = slice(epoch * 10, epoch * 10 + 10)
        assert sorted(first[mine] + second[mine]) == list(range(20))
    assert first[:10] != first[10:20]


class Short(Numbered):
    """Five batches an epoch: of two ranks one begins every other epoch a step before the other."""

    training_samples = 10


def interrupted(folder: Path) -> list[int]:
    """What is trained behind an interruption, and once more by a run that is not interrupted."""
    hparams = {"apart": True}
    toys.fit(Short, hparams, folder / "parts", max_length=pytorch.Batch(8))
    rest = toys.fit(Short, hparams, folder / "parts", max_length=pytorch.Batch(11), latest_checkpoint="latest")
    whole = toys.fit(Short, hparams, folder / "whole", max_length=pytorch.Batch(11), validation_period=pytorch.Batch(8))
    return [*rest.state["trained"].tolist(), *whole.state["trained"].tolist()[16:]]


class SameGlobalBatches(Numbered):
    """Has the same global batch on any number of ranks, as a trial with a ``global_batch_size`` has."""

    def build_training_data_loader(self) -> Any:
        loader = super().build_training_data_loader()
        return pytorch.DataLoader(loader.dataset, batch_size=4 // self.context.distributed.size, shuffle=True)


def train_same_global_batches(folder: Path, length: int, latest: str | None = None) -> list[int]:
    outcome = toys.fit(
        SameGlobalBatches, {}, folder, max_length=pytorch.Batch(length), validation_period=pytorch.Batch(7),
        latest_checkpoint=latest,
    )  # fmt: skip
    numbers: list[int] = outcome.state["trained"].tolist()
    return numbers


def test_the_same_samples_come_next_on_more_ranks_with_smaller_batches(tmp_path: Path) -> None:
    (whole,) = run_ranks(train_same_global_batches, tmp_path / "whole", 10, size=1)
    run_ranks(train_same_global_batches, tmp_path / "run", 7, size=1)
    parts = run_ranks(train_same_global_batches, tmp_path / "run", 10, "latest", size=2)
    together = [number for index in range(0, 6, 2) for part in parts for number in part[index : index + 2]]
    assert together == whole[28:]


def test_a_pass_that_one_rank_had_begun_continues_in_its_order(tmp_path: Path) -> None:
    for trained in run_ranks(interrupted, tmp_path):
        assert trained[:6] == trained[6:]


@settings(max_examples=60, deadline=None)
@given(
    samples=st.integers(1, 23),
    batch=st.integers(1, 5),
    replicas=st.integers(1, 3),
    taken=st.integers(0, 30),
    prefetched=st.integers(0, 4),
    shuffle=st.booleans(),
)
def test_a_stream_taken_up_again_gives_what_would_have_come(
    samples: int, batch: int, replicas: int, taken: int, prefetched: int, shuffle: bool
) -> None:
    data = range(samples)
    kind = torch.utils.data.RandomSampler if shuffle else torch.utils.data.SequentialSampler

    def stream(rank: int, skip: int = 0, passes: Any = None) -> ResumableBatchSampler:
        return ResumableBatchSampler(
            torch.utils.data.BatchSampler(kind(data), batch, False), replicas, rank, skip, passes
        )

    for rank in range(replicas):
        rng.seed_everything(3)
        original = stream(rank)
        iterator = iter(original)
        for _ in range(taken + prefetched):  # workers have read ahead
            next(iterator)
            torch.rand(1)
        ahead_of_consumption = original.state(taken)
        state = rng.get_state()
        expected = [next(iterator) for _ in range(20)]
        rng.set_state(state)
        resumed = iter(stream(rank, taken, ahead_of_consumption))
        again = [next(resumed) for _ in range(prefetched + 20)]
        assert again[prefetched:] == expected


def test_a_random_state_travels_as_json_with_every_bit() -> None:
    random.seed(3)
    random.gauss(0, 1)
    np.random.seed(4)
    np.random.standard_normal()
    state = rng.get_state(device=False)
    assert rng.same(rng.from_json(rng.to_json(state)), state)
    before = (random.random(), np.random.rand(), float(torch.rand(1)))
    rng.set_state(rng.from_json(rng.to_json(state)))
    assert (random.random(), np.random.rand(), float(torch.rand(1))) == before


class Hostile:
    """A pickle that makes a folder when it is loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


def test_a_value_that_a_stranger_puts_into_the_store_never_runs(tmp_path: Path) -> None:
    planted = pickle.dumps(Hostile(tmp_path / "ran")).hex()
    sync = SamplerRngSync(2, 1)
    sync._store = dist.HashStore()  # type: ignore[attr-defined]
    for value in (planted, "[]", "null", json.dumps({"python": 1}), "{}"):
        sync._store.set(f"trial_runtime/passes/{sync._name}/0", value)
        with pytest.raises(ValueError, match="no state of random generators"):
            sync(0, rng.get_state(device=False))
    assert not (tmp_path / "ran").exists()
