# ruff: noqa: ARG002 - trials have the signatures they have
"""A checkpoint of a trial that has changed is one clear error, before anything is loaded; what still fits goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deepspeed
import pytest
import torch
import toys
from torch import nn
from trial_runtime import pytorch
from trial_runtime.errors import CheckpointMismatchError, InvalidCheckpointException
from trial_runtime.pytorch import deepspeed as det_ds


class Switching(torch.optim.Optimizer):
    """SGD for two steps, ASGD then; its groups and its ``state_dict`` are those of the one at work."""

    def __init__(self, params: Any) -> None:
        params = list(params)
        super().__init__(params, {"lr": 0.02})
        self.kinds = {"sgd": torch.optim.SGD(params, lr=0.02, momentum=0.9), "asgd": torch.optim.ASGD(params, lr=0.01)}
        self.steps = 0
        self.param_groups = self.active.param_groups

    @property
    def active(self) -> torch.optim.Optimizer:
        return self.kinds["sgd" if self.steps < 2 else "asgd"]

    def step(self, closure: Any = None) -> Any:
        self.active.step()
        self.steps += 1
        self.param_groups = self.active.param_groups

    def state_dict(self) -> dict[str, Any]:
        kinds = {name: kind.state_dict() for name, kind in self.kinds.items()}
        return {"steps": self.steps, "kinds": kinds, "param_groups": self.active.state_dict()["param_groups"]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.steps = state_dict["steps"]
        for name, kind in self.kinds.items():
            kind.load_state_dict(state_dict["kinds"][name])
        self.param_groups = self.active.param_groups


OPTIMIZERS: dict[str, Any] = {
    "adam": lambda ps: torch.optim.Adam(ps, lr=0.02),
    "amsgrad": lambda ps: torch.optim.Adam(ps, lr=0.02, amsgrad=True),
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.02, momentum=0.9),
    "switching": Switching,
    "groups": lambda ps: torch.optim.Adam([{"params": ps[:2]}, {"params": ps[2:]}], lr=0.02),
}


class Changing(toys.Data, det_ds.DeepSpeedTrial):
    def __init__(self, context: Any) -> None:
        self.context, hparams = context, context.get_hparams()
        self.engines = []
        for _ in range(hparams.get("engines", 1)):
            width = hparams.get("width", 8)
            net = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1), *hparams.get("more", ()))
            optimizer = OPTIMIZERS[hparams.get("optimizer", "adam")](list(net.parameters()))
            config = toys.ds_config(hparams.get("stage", 1), bf16={"enabled": hparams.get("half", False)})
            engine = deepspeed.initialize(model=net, optimizer=optimizer, config=config)[0]
            self.engines.append(det_ds.float32_outside(context.wrap_model_engine(engine)))

    def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
        inputs, targets = next(dataloader_iter)
        for engine in self.engines:
            loss = nn.functional.mse_loss(engine(inputs), targets)
            engine.backward(loss)
            engine.step()
        return {"loss": loss}

    def evaluate_batch(self, dataloader_iter: Any) -> Any:
        next(dataloader_iter)
        return {"loss": 0.0}


def change(folder: Path, before: dict[str, Any], after: dict[str, Any]) -> toys.Outcome:
    toys.fit(Changing, before, folder, max_length=pytorch.Batch(2))
    return toys.fit(Changing, after, folder, max_length=pytorch.Batch(3), latest_checkpoint="latest")


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_all_that_changed_is_reported_at_once(stage: int, tmp_path: Path) -> None:
    with pytest.raises(InvalidCheckpointException) as error:
        change(tmp_path, {"stage": stage}, {"stage": stage, "width": 16, "optimizer": "sgd", "more": [nn.Linear(1, 1)]})
    message = str(error.value)
    assert "0.weight was [8, 4] and is [16, 4]" in message
    assert "the model has now 3.weight, 3.bias" in message
    assert "SGD has dampening, momentum, nesterov" in message


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({"stage": 0}, {"stage": 1}, "engine 0 was at ZeRO stage 0, and is at ZeRO stage 1 or 2 now"),
        ({"stage": 2}, {"stage": 3}, "was at ZeRO stage 1 or 2, and is at ZeRO stage 3 now"),
        ({"stage": 3}, {"stage": 0}, "was at ZeRO stage 3, and is at ZeRO stage 0 now"),
        ({"stage": 0}, {"stage": 0, "half": True}, "in full precision, and is in half now"),
        ({"half": True}, {}, "stage 1 or 2 in bf16, and is at ZeRO stage 1 or 2 now"),
        ({"optimizer": "groups"}, {}, "had 2 parameter groups, and has 1 now"),
        ({}, {"engines": 2}, "it has 1 engines, the trial 2"),
    ],
)
def test_a_change_that_does_not_fit_is_refused(
    before: dict[str, Any], after: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointMismatchError, match=f"does not fit the trial: .*{said}") as error:
        change(tmp_path, before, after)
    assert isinstance(error.value, AssertionError)  # that is what Determined's tests wait for


def test_a_change_that_fits_resumes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    changes: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"stage": 1}, {"stage": 2}),
        ({}, {"optimizer": "amsgrad"}),
        ({"half": True}, {"half": True}),
        ({"engines": 2}, {}),
    ]
    for number, (before, after) in enumerate(changes):
        assert len(change(tmp_path / str(number), before, after).training) == 1
    assert "has 1 engines more than the trial" in caplog.text


def test_an_optimizer_that_saves_its_own_way_resumes(tmp_path: Path) -> None:
    hparams = {"stage": 0, "optimizer": "switching"}
    resumed = change(tmp_path / "resumed", hparams, hparams)
    whole = toys.fit(Changing, hparams, tmp_path / "whole", max_length=pytorch.Batch(3))
    assert resumed.training[-1] == whole.training[-1]


@pytest.mark.parametrize(("before", "after"), [("switching", "sgd"), ("sgd", "switching")])
def test_an_optimizer_that_saves_its_own_way_is_not_another_one(before: str, after: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointMismatchError, match="the optimizer"):
        change(tmp_path, {"stage": 0, "optimizer": before}, {"stage": 0, "optimizer": after})


def test_a_trial_that_loads_by_itself_may_change(tmp_path: Path) -> None:
    class Loading(Changing):
        def load(self, context: Any, load_path: Path) -> None:
            self.loaded = load_path

    toys.fit(Changing, {"width": 8}, tmp_path, max_length=pytorch.Batch(2))
    rest = toys.fit(Loading, {"width": 4}, tmp_path, max_length=pytorch.Batch(3), latest_checkpoint="latest")
    assert len(rest.training) == 1
