"""Autocast around whole modules, on a CPU with the type that CUDA's autocast has."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from trial_runtime.pytorch.deepspeed import autocast_forward


@pytest.fixture(autouse=True)
def float16() -> Iterator[None]:
    before = torch.get_autocast_dtype("cpu")
    torch.set_autocast_dtype("cpu", torch.float16)
    yield
    torch.set_autocast_dtype("cpu", before)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
        self.inside: torch.dtype | None = None

    def forward(self, inputs: torch.Tensor) -> Any:
        output = self.layer(inputs)
        self.inside = output.dtype
        if inputs.isnan().any():
            raise ValueError("no numbers")
        return {"all": [output, (output, "a word")]}


def test_the_forward_is_autocast_and_the_code_around_it_sees_float32() -> None:
    net = autocast_forward(Net(), device_type="cpu")
    output = net(torch.ones(1, 4))["all"]
    assert net.inside is torch.float16
    assert (output[0].dtype, output[1][0].dtype, output[1][1]) == (torch.float32, torch.float32, "a word")
    assert not torch.is_autocast_enabled("cpu")


def test_a_copy_computes_with_its_own_weights() -> None:
    net = autocast_forward(Net(), device_type="cpu")
    other = copy.deepcopy(net)
    torch.nn.init.zeros_(other.layer.weight)
    torch.nn.init.zeros_(other.layer.bias)
    assert not other(torch.ones(1, 4))["all"][0].any()
    assert other.inside is torch.float16


def test_autocast_ends_with_a_forward_that_fails() -> None:
    net = autocast_forward(Net(), device_type="cpu")
    with pytest.raises(ValueError, match="no numbers"):
        net(torch.full((1, 4), torch.nan))
    assert not torch.is_autocast_enabled("cpu")
    assert net(torch.ones(1, 4))["all"][0].dtype is torch.float32


def test_switched_off_it_changes_nothing() -> None:
    net = autocast_forward(Net(), enabled=False, device_type="cpu")
    net(torch.ones(1, 4))
    assert net.inside is torch.float32
