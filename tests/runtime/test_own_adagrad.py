"""Adagrad at every stage: its parameter groups and its schedule count."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import deepspeed
import pytest
import torch
import toys
from torch import nn
from trial_runtime.pytorch import deepspeed as det_ds


def trained(make: Callable[[nn.Module, torch.optim.Optimizer], Any]) -> list[torch.Tensor]:
    """The weights after four steps; ``make`` gives what takes a loss backward and a step."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    first, *others = net.parameters()
    optimizer = torch.optim.Adagrad([{"params": [first], "weight_decay": 0.1}, {"params": others, "lr": 0.5}], lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    step = make(net, optimizer)
    for _ in range(4):
        step(torch.randn(8, 4))
        schedule.step()
    return [
        deepspeed.utils.safe_get_full_fp32_param(p) if hasattr(p, "ds_id") else p.detach() for p in net.parameters()
    ]


def plain(net: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    def step(inputs: torch.Tensor) -> None:
        optimizer.zero_grad()
        net(inputs).square().mean().backward()
        optimizer.step()

    return step


def in_engine(stage: int) -> Any:
    def make(net: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        engine, _, _, _ = deepspeed.initialize(model=net, optimizer=optimizer, config=toys.ds_config(stage=stage))

        def step(inputs: torch.Tensor) -> None:
            engine.backward(engine(inputs).square().mean())
            engine.step()

        return step

    return make


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_adagrad_follows_its_groups_and_its_schedule(stage: int, tmp_path: Path) -> None:
    with det_ds.init(run_dir=tmp_path):
        found = trained(in_engine(stage))
    for mine, torchs in zip(found, trained(plain), strict=True):
        torch.testing.assert_close(mine, torchs, rtol=0, atol=1e-6)
