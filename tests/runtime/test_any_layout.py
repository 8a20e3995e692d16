# ruff: noqa: ARG002 - trials have the signatures they have
"""Parameters of any shape and memory layout train, the same as with plain torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deepspeed
import pytest
import torch
import toys
from distributed import run_ranks
from torch import nn
from trial_runtime import pytorch
from trial_runtime.pytorch import deepspeed as det_ds

BATCHES = 4


class Odd(nn.Module):
    """A scalar, a transposed matrix, and weights in channels-last order."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.mix = nn.Parameter(torch.arange(12.0).reshape(3, 4).t() / 10)
        self.conv = nn.Conv2d(3, 2, 2).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        images = (inputs @ self.mix).reshape(-1, 3, 1, 1).expand(-1, 3, 2, 2)
        features: torch.Tensor = self.conv(images)
        return self.scale * features.reshape(len(inputs), -1).mean(1, keepdim=True)


def made() -> tuple[Odd, torch.optim.Optimizer]:
    torch.manual_seed(3)
    net = Odd()
    return net, torch.optim.SGD(net.parameters(), lr=0.01)


class OddTrial(toys.Data, det_ds.DeepSpeedTrial):
    def __init__(self, context: Any) -> None:
        self.context = context
        net, optimizer = made()
        if context.distributed.rank:
            with torch.no_grad():
                net.scale.fill_(9.0)  # rank 0's counts
                net.conv.weight.zero_()
        self.net = net
        config = toys.ds_config(stage=context.get_hparam("stage"))
        engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=config)
        self.engine = context.wrap_model_engine(engine)

    def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
        inputs, targets = self.context.to_device(next(dataloader_iter))
        loss = nn.functional.mse_loss(self.engine(inputs), targets)
        self.engine.backward(loss)
        self.engine.step()
        return {"loss": loss}

    def evaluate_batch(self, dataloader_iter: Any, batch_idx: int) -> Any:
        inputs, targets = self.context.to_device(next(dataloader_iter))
        return {"loss": nn.functional.mse_loss(self.engine(inputs), targets)}


def train(stage: int, folder: str) -> dict[str, torch.Tensor]:
    with det_ds.init(hparams={"stage": stage}, run_dir=folder) as context:
        trial = OddTrial(context)
        det_ds.Trainer(trial, context).fit(max_length=pytorch.Batch(BATCHES), checkpoint_policy="none")
        return {name: value.detach().clone() for name, value in trial.net.state_dict().items()}


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_scalars_transposed_and_channels_last_parameters_train(stage: int, tmp_path: Path) -> None:
    one, other = run_ranks(train, stage, str(tmp_path))
    before = made()[0].state_dict()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name
        assert torch.isfinite(value).all() and not torch.equal(value, before[name]), name
    # The first rank's start is everybody's: the other's scale of 9 would be far off still.
    assert abs(float(one["scale"]) - 1.5) < 1.0
