"""What DeepSpeed changed of late, where the runtime leans on it: a release that changes it again fails here.

Pipelines, whose gradients are divided by the accumulation since, are compared with plain torch in test_parallel.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deepspeed
import pytest
import torch
import toys
from deepspeed.checkpoint import constants
from deepspeed.constants import default_pg_timeout as deepspeeds_timeout
from torch import nn
from torch.distributed.distributed_c10d import _get_default_group
from torch.distributed.distributed_c10d import default_pg_timeout as torchs_timeout
from trial_runtime.pytorch import deepspeed as det_ds


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def test_ranks_wait_as_long_for_each_other_as_in_the_original() -> None:
    """DeepSpeed gives up after 10 minutes since 0.19, torch over gloo after 30; the runtime makes the group."""
    assert deepspeeds_timeout < torchs_timeout
    with det_ds.init():
        group: Any = _get_default_group()
        assert group._get_backend(torch.device("cpu")).options._timeout == torchs_timeout


def test_the_universal_format_is_the_one_that_other_world_sizes_are_read_from() -> None:
    assert constants.UNIVERSAL_CHECKPOINT_VERSION_VALUE == 0.4, "read _checkpoints/reshard.py and its tests again"


@pytest.mark.parametrize("stage", [0, 1])
def test_a_schedule_of_the_config_warms_each_group_up_to_its_own_rate(stage: int) -> None:
    net = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
    groups: list[dict[str, Any]] = [{"params": net[0].parameters(), "lr": 0.4}, {"params": net[1].parameters()}]
    schedule = {"type": "WarmupLR", "params": {"warmup_num_steps": 4, "warmup_type": "linear"}}
    with det_ds.init() as context:
        optimizer = torch.optim.SGD(groups, lr=0.2)
        config = {**toys.ds_config(stage=stage), "scheduler": schedule}
        engine = context.wrap_model_engine(deepspeed.initialize(model=net, optimizer=optimizer, config=config)[0])
        rates = []
        for _ in range(5):
            engine.backward(sum(layer(torch.ones(1, 4)).sum() for layer in net))
            engine.step()
            rates.append([group["lr"] for group in engine.optimizer.param_groups])
    assert rates[-1] == pytest.approx([0.4, 0.2])
    assert rates[1] == pytest.approx([0.1, 0.05])
