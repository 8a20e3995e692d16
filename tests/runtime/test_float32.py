"""Half precision inside of an engine, float32 around it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import deepspeed
import pytest
import torch
import toys
from torch import nn
from trial_runtime.pytorch import deepspeed as det_ds

BF16 = {"bf16": {"enabled": True}}
AUTOCAST = {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


class Net(nn.Module):
    """Remembers the types it was called with, and returns what it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 1)
        self.seen: list[torch.dtype] = []

    def forward(self, batch: dict[str, Any], scale: torch.Tensor, index: torch.Tensor) -> dict[str, Any]:
        self.seen = [batch["x"].dtype, scale.dtype, index.dtype]
        out = self.inner(batch["x"])
        return {"pair": Pair(out, index), "list": [out, "text"]}


def engine(tmp_path: Path, **config: Any) -> tuple[Any, Net]:
    net = Net()
    with det_ds.init(run_dir=tmp_path):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        made = deepspeed.initialize(model=net, optimizer=optimizer, config=toys.ds_config(stage=1, **config))[0]
    return det_ds.float32_outside(made), net


@pytest.mark.parametrize(
    ("config", "inside"),
    [({}, torch.float32), (BF16, torch.bfloat16), (AUTOCAST, torch.float32)],
    ids=["fp32", "bf16", "autocast"],
)
def test_only_the_model_sees_half_precision(config: dict[str, Any], inside: torch.dtype, tmp_path: Path) -> None:
    made, net = engine(tmp_path, **config)
    index = torch.arange(2)

    out = made({"x": torch.randn(2, 4)}, scale=torch.ones(()), index=index)

    assert net.seen == [inside, inside, torch.int64]
    assert out["pair"].first.dtype == out["list"][0].dtype == torch.float32
    assert out["pair"].second is index and out["list"][1] == "text"


def test_a_loss_can_be_made_of_its_outputs_and_float32_tensors(tmp_path: Path) -> None:
    made, net = engine(tmp_path, **BF16)
    before = net.inner.bias.detach().clone()

    out = made({"x": torch.randn(2, 4)}, torch.ones(()), torch.arange(2))
    made.backward((out["list"][0] @ torch.ones(1, 1)).mean())  # a product refuses two types
    made.step()

    assert not torch.equal(net.inner.bias, before)
