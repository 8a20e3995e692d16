# ruff: noqa: ARG002 - trials and callbacks have the signatures they have
"""A resumed run is the run that was never interrupted, bit for bit."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import toys
from distributed import run_ranks
from trial_runtime import pytorch


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
    class Trial(kind):  # type: ignore[misc, valid-type]
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            self.counting = Counting()

        def build_callbacks(self) -> dict[str, Any]:
            return {"counting": self.counting}

        def state(self) -> dict[str, torch.Tensor]:
            return {**super().state(), "epochs": torch.tensor(self.counting.epochs)}

    return Trial


def interrupted(kind: type, at: int, until: int, folder: Path, **hparams: Any) -> None:
    """Compare a run of ``until`` batches with one that is ended and resumed after ``at`` batches."""
    kind = with_callback(kind)
    periods = {"validation_period": pytorch.Batch(3), "reporting_period": pytorch.Batch(1)}
    whole = toys.fit(kind, hparams, folder / "whole", max_length=pytorch.Batch(until), **periods)
    stopping = {**periods, "checkpoint_period": pytorch.Batch([at])}
    toys.fit(kind, hparams, folder / "parts", max_length=pytorch.Batch(at), **stopping)
    rest = toys.fit(
        kind, hparams, folder / "parts", max_length=pytorch.Batch(until), latest_checkpoint="latest", **periods
    )
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
        interrupted(kind, at, until, tmp_path / str(index), **hparams)


def on_this_rank(name: str, folder: Path) -> None:
    kind = getattr(toys, name)
    stages = [0, 1, 2, 3] if name == "SimpleDS" else [0, 1] if name.endswith("DS") else [0]
    for stage in stages:
        interrupted(kind, 3, 7, folder / str(stage), stage=stage, k=2)


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
        interrupted(kind, 7, 20, tmp_path / str(index))


def test_a_resume_that_is_already_at_its_end_trains_nothing() -> None:
    with tempfile.TemporaryDirectory() as folder:
        toys.fit(toys.SimplePT, run_dir=Path(folder), max_length=pytorch.Batch(3))
        again = toys.fit(toys.SimplePT, run_dir=Path(folder), max_length=pytorch.Batch(3), latest_checkpoint="latest")
    assert again.training == []
