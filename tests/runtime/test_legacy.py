"""Checkpoints that the real ``determined`` package wrote, and those of the trial before its migration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import toys
from distributed import run_ranks
from test_oracle import theirs
from trial_runtime import pytorch
from trial_runtime.errors import InvalidCheckpointException


@pytest.fixture
def written_by_determined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, dict[str, torch.Tensor]]:
    monkeypatch.chdir(tmp_path)
    for variable in ("XDG_DATA_HOME", "USE_TORCH_DISTRIBUTED"):
        monkeypatch.setenv(variable, os.environ.get(variable, ""))
    _, state = theirs(toys.SimpleBody, 1, tmp_path)
    checkpoints = sorted(tmp_path.glob("theirs/**/state_dict.pth"), key=lambda path: path.stat().st_mtime)
    return checkpoints[-1].parent, state


def test_a_pytorch_trial_goes_on_where_determined_stopped(
    written_by_determined: tuple[Path, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    checkpoint, state = written_by_determined
    at = {"run_dir": tmp_path / "ours", "latest_checkpoint": str(checkpoint)}
    assert toys.difference(toys.fit(toys.SimplePT, max_length=pytorch.Batch(24), **at).state, state) == 0.0
    longer = toys.fit(toys.SimplePT, max_length=pytorch.Batch(26), **at)
    assert [metrics["epoch"] for metrics in longer.training] == [3, 3]


def test_the_migrated_trial_starts_with_its_weights(
    written_by_determined: tuple[Path, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    checkpoint, state = written_by_determined
    started: dict[str, torch.Tensor] = {}

    class Started(pytorch.PyTorchCallback):
        def __init__(self, trial: Any) -> None:
            self.trial = trial

        def on_training_start(self) -> None:
            started.update(self.trial.state())

    class Migrated(toys.SimpleDS):
        def build_callbacks(self) -> Any:
            return {"started": Started(self)}

    for stage in (0, 1):
        at = {"run_dir": tmp_path / f"ours{stage}", "latest_checkpoint": str(checkpoint)}
        outcome = toys.fit(Migrated, {"stage": stage}, max_length=pytorch.Batch(2), **at)
        assert toys.difference(started, state) == 0.0
        assert [metrics["epoch"] for metrics in outcome.training] == [0, 0]


def warm_start_everywhere(folder: Path) -> None:
    """The first losses at every stage are those of the original's weights."""
    toys.fit(toys.SimplePT, {}, folder / "original", max_length=pytorch.Batch(3))
    latest = folder / "original" / "checkpoints" / (folder / "original" / "checkpoints" / "latest").read_text().strip()
    losses = []
    for stage in (0, 1, 2, 3):
        hparams, run_dir = {"stage": stage}, folder / str(stage)
        arguments = {"max_length": pytorch.Batch(3), "latest_checkpoint": str(latest)}
        losses.append(toys.fit(toys.SimpleDS, hparams, run_dir, **arguments).training)
    cold = toys.fit(toys.SimpleDS, {}, folder / "cold", max_length=pytorch.Batch(3)).training
    for training in losses[1:]:
        if training:
            assert toys.metric_difference(training, losses[0]) <= 1e-6
            assert toys.metric_difference(training, cold) > 1e-3


def test_every_stage_starts_with_the_original_weights(tmp_path: Path) -> None:
    run_ranks(warm_start_everywhere, tmp_path)


def test_weights_that_fit_no_model_are_refused(tmp_path: Path) -> None:
    toys.fit(toys.GanPT, {}, tmp_path / "gan", max_length=pytorch.Batch(1))
    latest = next((tmp_path / "gan" / "checkpoints").glob("*/state_dict.pth")).parent
    with pytest.raises(InvalidCheckpointException, match="fits no model"):
        arguments = {"max_length": pytorch.Batch(1), "latest_checkpoint": str(latest)}
        toys.fit(toys.SimpleDS, {}, tmp_path / "simple", **arguments)


def test_a_pytorch_trial_says_that_it_cannot_load_engines(tmp_path: Path) -> None:
    toys.fit(toys.SimpleDS, {}, tmp_path / "ds", max_length=pytorch.Batch(1))
    latest = next((tmp_path / "ds" / "checkpoints").glob("*/manifest.json")).parent
    with pytest.raises(InvalidCheckpointException, match="not one of a PyTorchTrial"):
        arguments = {"max_length": pytorch.Batch(2), "latest_checkpoint": str(latest)}
        toys.fit(toys.SimplePT, {}, tmp_path / "pt", **arguments)
