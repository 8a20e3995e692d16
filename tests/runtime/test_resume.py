# ruff: noqa: ARG002 - trials and callbacks have the signatures they have
"""A resumed run is the run that was never interrupted, bit for bit."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import toys
from distributed import run_ranks
from trial_runtime import pytorch
from trial_runtime.pytorch import deepspeed as det_ds


class Counting(pytorch.PyTorchCallback):
    """Has state, and draws from the generators."""

    def __init__(self) -> None:
        self.epochs = 0.0

    def on_training_epoch_end(self, epoch_idx: int) -> None:
        self.epochs += float(torch.rand(()))

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": self.epochs}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.epochs = state_dict["epochs"]


def with_callback(kind: type) -> type:
    class Trial(kind):  # type: ignore[misc]
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            self.counting = Counting()

        def build_callbacks(self) -> dict[str, Any]:
            return {"counting": self.counting}

        def state(self) -> dict[str, torch.Tensor]:
            return {**super().state(), "epochs": torch.tensor(self.counting.epochs)}

    return Trial


def interrupted(kind: type, places: Sequence[int], until: int, folder: Path, **hparams: Any) -> None:
    """Compare a run of ``until`` batches with those that are ended and resumed after so many batches."""
    kind = with_callback(kind)
    periods = {"validation_period": pytorch.Batch(3), "reporting_period": pytorch.Batch(1)}
    whole = toys.fit(kind, hparams, folder / "whole", max_length=pytorch.Batch(until), **periods)
    for at in places:
        parts = folder / f"parts{at}"
        stopping = {**periods, "checkpoint_period": pytorch.Batch([at])}
        toys.fit(kind, hparams, parts, max_length=pytorch.Batch(at), **stopping)
        rest = toys.fit(kind, hparams, parts, max_length=pytorch.Batch(until), latest_checkpoint="latest", **periods)
        label = f"{kind.__mro__[1].__name__} at {at} {hparams}"
        assert toys.difference(whole.state, rest.state) == 0.0, f"{label}: {toys.difference(whole.state, rest.state)}"
        if rest.training:
            assert toys.metric_difference(whole.training[-len(rest.training) :], rest.training) == 0.0, label
            assert rest.validation[-1] == whole.validation[-1], label


KINDS = [toys.SimplePT, toys.SimpleDS, toys.GanPT, toys.GanDS, toys.PartsPT, toys.PartsDS]


@pytest.mark.parametrize("kind", KINDS)
def test_one_rank(kind: type, tmp_path: Path) -> None:
    # Epochs have 8 micro-batches: within an epoch, at its end, and (k = 2, PyTorchTrial) within an accumulation.
    for index, (at, until, hparams) in enumerate([(3, 12, {}), (8, 11, {"stage": 1}), (5, 9, {"k": 2})]):
        interrupted(kind, [at], until, tmp_path / str(index), **hparams)


def on_this_rank(name: str, folder: Path) -> None:
    kind = getattr(toys, name)
    stages = [0, 1, 2, 3] if name == "SimpleDS" else [0, 1] if name.endswith("DS") else [0]
    for stage in stages:
        interrupted(kind, [3], 7, folder / str(stage), stage=stage, k=2)


@pytest.mark.parametrize("name", [kind.__name__ for kind in KINDS])
def test_two_ranks(name: str, tmp_path: Path) -> None:
    run_ranks(on_this_rank, name, tmp_path)


def test_workers_and_own_samplers_continue_in_order(tmp_path: Path) -> None:
    class Sampled(toys.SimplePT):
        def build_training_data_loader(self) -> Any:
            data = toys.dataset(32)
            order = pytorch.samplers.ReproducibleShuffleSampler(torch.utils.data.SequentialSampler(data), seed=5)
            return pytorch.DataLoader(data, batch_size=4, sampler=order, num_workers=1)

    class Workers(toys.SimplePT):
        def build_training_data_loader(self) -> Any:
            return pytorch.DataLoader(toys.dataset(32), batch_size=4, shuffle=True, num_workers=1)

    for index, kind in enumerate((Sampled, Workers)):
        interrupted(kind, [7], 20, tmp_path / str(index))


@pytest.mark.parametrize("kind", [toys.SimplePT, toys.SimpleDS])
def test_a_second_fit_trains_again(kind: type, tmp_path: Path) -> None:
    indices = []

    class Twice(kind):  # type: ignore[misc]
        def train_batch(self, data: Any = None, epoch_idx: int = 0, batch_idx: int = 0, **given: Any) -> Any:
            indices.append((epoch_idx, batch_idx))
            return super().train_batch(given.get("batch", data), epoch_idx, batch_idx)

    api = det_ds if issubclass(kind, det_ds.DeepSpeedTrial) else pytorch
    with api.init(hparams={}, run_dir=tmp_path) as context:
        trainer = api.Trainer(Twice(context), context)
        trainer.fit(max_length=pytorch.Batch(3))
        trainer.fit(max_length=pytorch.Epoch(1))
    assert indices == [(0, 0), (0, 1), (0, 2), *((0, index) for index in range(8))]


def test_a_callback_without_saved_state_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Counting(pytorch.PyTorchCallback):
        def on_training_start(self) -> None:
            self.count = 0

        def state_dict(self) -> dict[str, Any]:
            return {"count": self.count}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            raise AssertionError

    class Later(toys.SimplePT):
        def build_callbacks(self) -> Any:
            return {"later": Counting()}

    toys.fit(toys.SimplePT, run_dir=tmp_path, max_length=pytorch.Batch(1))
    toys.fit(Later, run_dir=tmp_path, max_length=pytorch.Batch(2), latest_checkpoint="latest")
    assert "'later'" in caplog.text


def asked_for_state(name: str, folder: Path) -> list[int]:
    asked = []

    class Asked(pytorch.PyTorchCallback):
        def state_dict(self) -> dict[str, Any]:
            asked.append(toys.world_size())
            return {}

    class Noting(getattr(toys, name)):  # type: ignore[misc]
        def build_callbacks(self) -> Any:
            return {"asked": Asked()}

    toys.fit(Noting, run_dir=folder, max_length=pytorch.Batch(1))
    return asked


@pytest.mark.parametrize(("name", "others"), [("SimplePT", []), ("SimpleDS", [2])])
def test_where_callbacks_are_asked_for_their_state(name: str, others: list[int], tmp_path: Path) -> None:
    assert run_ranks(asked_for_state, name, tmp_path) == [[2], others]


def test_a_resume_that_is_already_at_its_end_trains_nothing() -> None:
    with tempfile.TemporaryDirectory() as folder:
        toys.fit(toys.SimplePT, run_dir=Path(folder), max_length=pytorch.Batch(3))
        again = toys.fit(toys.SimplePT, run_dir=Path(folder), max_length=pytorch.Batch(3), latest_checkpoint="latest")
    assert again.training == []


def test_the_checkpoint_may_be_given_as_a_path(tmp_path: Path) -> None:
    toys.fit(toys.SimplePT, run_dir=tmp_path / "one", max_length=pytorch.Batch(1))
    (checkpoint,) = (tmp_path / "one" / "checkpoints").glob("0*")
    more = toys.fit(toys.SimplePT, run_dir=tmp_path / "two", max_length=pytorch.Batch(2), latest_checkpoint=checkpoint)
    assert len(more.training) == 1


class Augmented(torch.utils.data.Dataset[Any]):
    """Draws from every generator, a different number of times for each sample."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = sum(random.random() + float(np.random.rand()) for _ in range(index % 3 + 1))
        inputs = torch.full((4,), index / 40) + 0.1 * torch.rand(4) + 0.1 * noise
        return inputs, inputs.sum().reshape(1)


def noisy_collate(samples: list[Any]) -> Any:
    inputs, targets = torch.utils.data.default_collate(samples)
    return inputs + 0.01 * torch.rand(()), targets


def seed_by_worker(worker: int) -> None:
    np.random.seed(worker)


def augmenting(kind: type, seed: int | None = None, **loading: Any) -> type:
    class Trial(kind):  # type: ignore[misc]
        def build_training_data_loader(self) -> Any:
            own = None if seed is None else torch.Generator().manual_seed(seed)
            return pytorch.DataLoader(Augmented(), batch_size=4, shuffle=True, generator=own, **loading)

    return Trial


LOADING: dict[str, dict[str, Any]] = {
    "one": {"num_workers": 1},
    "three": {"num_workers": 3, "collate_fn": noisy_collate, "worker_init_fn": seed_by_worker},
    "far ahead": {"num_workers": 2, "prefetch_factor": 9, "persistent_workers": True},
    "own generator": {"num_workers": 2, "seed": 5},
}


@pytest.mark.parametrize("name", LOADING)
def test_augmenting_workers_draw_what_they_would_have_drawn(name: str, tmp_path: Path) -> None:
    # An epoch has 10 batches: at every place among three workers, before each had one, and at an epoch's end.
    places = (1, 2, 6, 10) if name == "three" else (1, 10)
    interrupted(augmenting(toys.SimplePT, **LOADING[name]), places, 14, tmp_path)


def test_a_run_that_is_resumed_again_and_again_draws_the_same(tmp_path: Path) -> None:
    kind = augmenting(toys.SimplePT, num_workers=3)
    whole = toys.fit(kind, {}, tmp_path / "whole", max_length=pytorch.Batch(17))
    arguments: dict[str, Any] = {"checkpoint_period": pytorch.Batch([4, 9, 11])}
    for until in (4, 9, 11, 17):
        rest = toys.fit(kind, {}, tmp_path / "parts", max_length=pytorch.Batch(until), **arguments)
        arguments["latest_checkpoint"] = "latest"
    assert toys.difference(whole.state, rest.state) == 0.0


class Streaming(torch.utils.data.IterableDataset[Any]):
    """Endless and random; knows where it is, as torchdata's StatefulDataLoader does."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(3)

    def __iter__(self) -> Any:
        while True:
            inputs = torch.rand(4, 4, generator=self.generator)
            yield inputs, inputs.sum(1, keepdim=True)

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["generator"])


def test_a_loader_of_the_trials_own_that_has_state_resumes_where_it_was(tmp_path: Path) -> None:
    class Trial(toys.SimplePT):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            context.experimental.disable_dataset_reproducibility_checks()

        def build_training_data_loader(self) -> Any:
            return Streaming()

    interrupted(Trial, [3], 8, tmp_path)


def workers_on_this_rank(folder: Path) -> None:
    interrupted(augmenting(toys.SimpleDS, num_workers=2), [3], 9, folder, k=2, stage=1)


def test_workers_of_two_ranks(tmp_path: Path) -> None:
    run_ranks(workers_on_this_rank, tmp_path)
