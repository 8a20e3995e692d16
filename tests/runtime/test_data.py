# ruff: noqa: ARG002 - trials and datasets have the signatures they have
"""Loaders, samplers and batches: what Determined's do, these do."""

from __future__ import annotations

import importlib
import logging
from collections import OrderedDict, UserDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from trial_runtime import pytorch
from trial_runtime.pytorch import samplers
from trial_runtime.pytorch._data.training_data import TrainingData

determined = pytest.importorskip("determined")
their = importlib.import_module("determined.pytorch")

BATCHES = st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=3), min_size=1, max_size=12)
CPU = torch.device("cpu")


def first(items: Any, count: int = 40) -> list[Any]:
    return [item for item, _ in zip(items, range(count), strict=False)]


@given(batches=BATCHES, repeat=st.booleans(), skip=st.integers(0, 9), ranks=st.integers(1, 4), data=st.data())
def test_batch_samplers_are_adapted_alike(batches: Any, repeat: bool, skip: int, ranks: int, data: Any) -> None:
    rank = data.draw(st.integers(0, ranks - 1))
    ours = pytorch.adapt_batch_sampler(batches, repeat, skip, ranks, rank)
    theirs = their.adapt_batch_sampler(batches, repeat, skip, ranks, rank)
    assert len(ours) == len(theirs)
    if not (repeat and len(theirs) == 0):
        assert first(ours) == first(theirs)


@given(
    size=st.integers(1, 12), workers=st.integers(1, 4), skip=st.integers(0, 15), seed=st.integers(0, 99), data=st.data()
)
def test_samplers_are_alike(size: int, workers: int, skip: int, seed: int, data: Any) -> None:
    rank = data.draw(st.integers(0, workers - 1))
    makers: dict[str, Any] = {
        "RepeatSampler": (),
        "RepeatBatchSampler": (),
        "DistributedSampler": (workers, rank),
        "DistributedBatchSampler": (workers, rank),
        "SkipSampler": (skip,),
        "SkipBatchSampler": (skip,),
        "ReproducibleShuffleSampler": (seed,),
        "ReproducibleShuffleBatchSampler": (seed,),
    }
    for name, arguments in makers.items():
        items: Any = list(range(size))
        ours, theirs = getattr(samplers, name)(items, *arguments), getattr(their.samplers, name)(items, *arguments)
        assert len(ours) == len(theirs), name
        for _ in range(2):  # passes
            assert first(ours) == first(theirs), name


LOADERS: list[dict[str, Any]] = [
    {},
    {"batch_size": 3},
    {"batch_size": 3, "drop_last": True},
    {"batch_size": 4, "shuffle": True},
    {"batch_size": 4, "shuffle": True, "generator": True},
    {"batch_size": 2, "sampler": [5, 3, 1]},
    {"batch_sampler": [[0, 1], [7], [4, 5]]},
    {"batch_size": 5, "collate_fn": lambda samples: torch.stack([x for x, _ in samples]).sum()},
    {"batch_size": 4, "num_workers": 1, "prefetch_factor": 3, "persistent_workers": True},
]


@pytest.mark.parametrize("arguments", LOADERS, ids=lambda arguments: ",".join(arguments) or "defaults")
def test_loaders_are_alike(arguments: dict[str, Any]) -> None:
    def read(api: Any) -> Any:
        torch.manual_seed(3)
        given = dict(arguments)
        if "generator" in given:
            given["generator"] = torch.Generator().manual_seed(5)
        loader = api.DataLoader(toys.dataset(10), **given)
        mine = loader.get_data_loader(repeat=True, skip=1, num_replicas=2, rank=1)
        return [len(loader), list(loader), len(mine), first(mine, 7)]

    ours, theirs = read(pytorch), read(their)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_arguments_reach_torchs_loader() -> None:
    arguments: dict[str, Any] = {
        "batch_size": 2, "num_workers": 2, "pin_memory": True, "timeout": 9, "worker_init_fn": print,
        "multiprocessing_context": "spawn", "prefetch_factor": 5, "persistent_workers": True,
    }  # fmt: skip
    ours = pytorch.DataLoader(toys.dataset(8), **arguments).get_data_loader()
    plain = torch.utils.data.DataLoader(toys.dataset(8), **arguments)
    for name in ("num_workers", "pin_memory", "timeout", "prefetch_factor", "persistent_workers"):
        assert getattr(ours, name) == getattr(plain, name), name
    assert type(ours.multiprocessing_context) is type(plain.multiprocessing_context)
    assert ours.worker_init_fn is not None


class Movable:
    """What libraries give as a batch: an object with ``to``."""

    def __init__(self, where: str = "nowhere") -> None:
        self.where = where

    def to(self, device: Any) -> Movable:
        return Movable(str(device))


def structures() -> list[Any]:
    array = np.arange(6, dtype=np.float32).reshape(3, 2)
    return [
        torch.ones(3),
        array,
        {"a": array, "b": [torch.zeros(2), (array, {"c": array})]},
        [array, "text", 3, None],
        (array, torch.ones(1)),
        OrderedDict(x=array),
        np.array(["words"]),
        np.array([object()], dtype=object),
        np.array([True, False]),
        np.array([1 + 2j]),
    ]


@pytest.mark.parametrize("index", range(len(structures())))
def test_batches_move_alike(index: int) -> None:
    ours = pytorch.to_device(structures()[index], CPU)
    theirs = their.to_device(structures()[index], CPU)
    assert type(ours) is type(theirs)
    assert str(ours) == str(theirs) or index == 7  # an object's address


def test_objects_that_can_move_are_asked_to() -> None:
    moved = pytorch.to_device([Movable(), {"inside": Movable()}], CPU)
    assert (moved[0].where, moved[1]["inside"].where) == ("cpu", "cpu")


def test_what_cannot_move_is_reported_once_a_type(caplog: pytest.LogCaptureFixture) -> None:
    with pytorch.init() as context, caplog.at_level(logging.WARNING, "trial_runtime.pytorch"):
        for _ in range(3):
            assert context.to_device({"text": "a", "number": 1, "more": ["b", 2]}) == {
                "text": "a", "number": 1, "more": ["b", 2],
            }  # fmt: skip
    said = [record.message for record in caplog.records]
    assert said == [f"Was not able to move data item of type '{kind}' to device." for kind in ("str", "int")]


@pytest.mark.parametrize("data", [torch.ones(5, 2), np.ones(4), {"a": np.ones(3)}, [torch.ones(2)], (torch.ones(6), 1)])
def test_lengths_are_alike(data: Any) -> None:
    assert pytorch.data_length(data) == their.data_length(data)


class OfItsOwn(UserDict[str, Any]):
    """A batch type that the runtime does not know."""

    def to(self, device: Any) -> OfItsOwn:
        return self


def test_batches_of_a_type_of_its_own_train_and_validate(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Own(toys.SimpleDS):
        def loader(self, samples: int) -> Any:
            collate = torch.utils.data.default_collate
            return pytorch.DataLoader(toys.dataset(samples), batch_size=4, collate_fn=lambda b: OfItsOwn(xy=collate(b)))

        def build_training_data_loader(self) -> Any:
            return self.loader(16)

        def build_validation_data_loader(self) -> Any:
            return self.loader(8)

        def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
            return super().train_batch(iter([next(dataloader_iter)["xy"]]), epoch_idx, batch_idx)

        def evaluate_batch(self, dataloader_iter: Any) -> Any:
            return super().evaluate_batch(iter([next(dataloader_iter)["xy"]]))

        def get_batch_length(self, batch: Any) -> int:
            return len(batch["xy"][0])

    with caplog.at_level(logging.INFO, "trial_runtime.pytorch"):
        outcome = toys.fit(Own, run_dir=tmp_path, max_length=pytorch.Epoch(1), reporting_period=pytorch.Batch(1))
    assert len(outcome.training) == 4
    assert "validation_loss" in outcome.validation[-1][1]
    assert " samples/s, " in caplog.text


def test_a_loader_of_a_class_of_its_own_makes_the_loader_for_training_too() -> None:
    class Doubling(pytorch.DataLoader):
        def get_data_loader(self, *args: Any, **kwargs: Any) -> Any:
            loader = super().get_data_loader(*args, **kwargs)
            loader.collate_fn = lambda items: 2 * torch.stack(items)
            return loader

    data = TrainingData(Doubling(torch.arange(4), batch_size=1), replicas=2, rank=1, state={"taken": 1})  # type: ignore[arg-type]
    data.open()
    assert data.length == 2
    assert [next(data).item() for _ in range(3)] == [6, 2, 6]


def test_batches_whose_length_nobody_knows_train_too() -> None:
    data = TrainingData([OfItsOwn(), OfItsOwn()], samples_of=pytorch.data_length)
    data.open()
    assert isinstance(next(data), OfItsOwn)
    assert data.samples is None
    known = TrainingData([torch.ones(3), torch.ones(2)], samples_of=pytorch.data_length)
    known.open()
    assert [len(next(known)) for _ in range(3)] == [3, 2, 3]
    assert (known.samples, known.taken) == (8, 3)


class Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield from toys.dataset(12)


@pytest.mark.parametrize("kind", [toys.SimplePT, toys.SimpleDS])
def test_an_iterable_dataset_without_a_length_trains_validates_and_saves(kind: type, tmp_path: Path) -> None:
    class Streaming(kind):  # type: ignore[misc]
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            context.disable_dataset_reproducibility_checks()

        def build_training_data_loader(self) -> Any:
            return torch.utils.data.DataLoader(Stream(), batch_size=4)

        build_validation_data_loader = build_training_data_loader

    outcome = toys.fit(
        Streaming,
        run_dir=tmp_path,
        max_length=pytorch.Batch(7),
        validation_period=pytorch.Batch(3),
        checkpoint_period=pytorch.Batch(4),
    )
    assert len(outcome.training) == 7
    assert [batches for batches, _ in outcome.validation] == [3, 6, 7]
    assert {metrics["epochs"] for _, metrics in outcome.validation} == {0}


def test_a_batch_that_cannot_be_loaded_can_be_left_out() -> None:
    class Damaged(torch.utils.data.Dataset[Any]):
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
    class Pairs(torch.utils.data.Sampler[list[int]]):
        def __iter__(self) -> Any:
            yield from ([0, 1], [2, 3])

    data = TrainingData(pytorch.DataLoader(range(4), batch_sampler=Pairs()))  # type: ignore[arg-type]
    data.open()
    assert [next(data).tolist() for _ in range(3)] == [[0, 1], [2, 3], [0, 1]]
