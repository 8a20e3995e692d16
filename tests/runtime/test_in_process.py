"""Loading without workers gives what torch's own iterator gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, Sampler, Subset, TensorDataset
from trial_runtime import pytorch
from trial_runtime.pytorch._data.in_process import InProcessIterator
from trial_runtime.pytorch._data.training_data import TrainingData


class Augmented(Dataset[Any]):
    """Draws in loading, as augmentations do."""

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> Any:
        return {"index": index, "noise": torch.rand(2)}


LOADERS: dict[str, Callable[[], Any]] = {
    "draws": lambda: DataLoader(Augmented(), batch_size=3, shuffle=True),
    "generator": lambda: DataLoader(
        Augmented(), batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(5), drop_last=True
    ),
    "getitems": lambda: DataLoader(Subset(TensorDataset(torch.arange(9)), list(range(4))), batch_size=3),
    "collate": lambda: DataLoader(
        Augmented(), batch_sampler=BatchSampler(RandomSampler(range(5)), 2, False), collate_fn=lambda items: items
    ),
}


@pytest.mark.parametrize("name", LOADERS)
def test_batches_and_random_numbers_are_those_of_torchs_iterator(name: str) -> None:
    def read(kind: Any) -> tuple[Any, torch.Tensor]:
        torch.manual_seed(3)
        loader = LOADERS[name]()
        return [batch for _ in range(2) for batch in kind(loader)], torch.rand(3)

    (mine, my_draws), (theirs, their_draws) = read(InProcessIterator), read(iter)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
    assert torch.equal(my_draws, their_draws)


def test_a_batch_that_cannot_be_loaded_can_be_left_out() -> None:
    class Damaged(Dataset[Any]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            if index == 1:
                raise OSError("damaged")
            return index

    data = TrainingData(pytorch.DataLoader(Damaged(), batch_size=1))
    data.open()
    assert next(data).item() == 0
    with pytest.raises(OSError, match="damaged"):
        next(data)
    assert [next(data).item() for _ in range(2)] == [2, 3]


def test_batch_samplers_need_no_length() -> None:
    class Pairs(Sampler[list[int]]):
        def __iter__(self) -> Any:
            yield from ([0, 1], [2, 3])

    data = TrainingData(pytorch.DataLoader(Augmented(), batch_sampler=Pairs()))
    data.open()
    assert [next(data)["index"].tolist() for _ in range(3)] == [[0, 1], [2, 3], [0, 1]]


def test_a_profile_shows_the_time_for_data_as_torch_does() -> None:
    def loading(kind: Any) -> list[str]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            next(kind(DataLoader(Augmented(), batch_size=2)))
        return [event.name for event in profile.events() if "DataLoader" in event.name]

    assert loading(InProcessIterator) == loading(iter) != []
