# ruff: noqa: ARG002 - trials have the signatures they have
"""What ds-train's options change in a training: the precision of engines, the device, reported gradient norms."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import deepspeed
import pytest
import torch
import toys
from distributed import run_ranks
from torch import nn
from trial_runtime._cluster_info import ENV_VAR, ClusterInfo, FitDefaults, RunInfo, TrialInfo
from trial_runtime.errors import InvalidDeepSpeedConfigException, InvalidExperimentException
from trial_runtime.pytorch import Batch
from trial_runtime.pytorch.deepspeed import overwrite_deepspeed_config
from trial_runtime.train.cli import main
from trial_runtime.train.options import parser
from trial_runtime.train.run.prepare import changed_document

CONFIG = "entrypoint: m:T\nhyperparameters: {a: 1}\nsearcher: {name: single, max_length: 3}\n"


def describe(folder: Path, precision: str | None = None, **fit: Any) -> None:
    run = RunInfo(str(folder), str(folder / "checkpoints"), precision=precision, fit=FitDefaults(**fit))
    os.environ[ENV_VAR] = ClusterInfo(TrialInfo(1, 1, toys.SEED, {}, {}), run, [0]).to_json()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves the environment as it was."""
    for name in (ENV_VAR, "CUDA_VISIBLE_DEVICES"):
        if name in os.environ:
            monkeypatch.setenv(name, os.environ[name])
        else:
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)


class Casting(toys.SimpleDS):
    """Reads ``overwrite_deepspeed_args``, as converted trials do; its loss is computed outside the engine."""

    def __init__(self, context: Any) -> None:
        self.context = context
        net = nn.Linear(4, 1)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.02)
        overwrite = context.get_hparams()["overwrite_deepspeed_args"]
        config = overwrite_deepspeed_config(toys.ds_config(1), overwrite)
        engine, self.optimizer, _, _ = deepspeed.initialize(model=net, optimizer=optimizer, config=config)
        self.model = context.wrap_model_engine(engine)
        self.models = {"model": net}
        self.seen = context.wrap_reducer(lambda values: float(sum(values)), name="seen")

    def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
        inputs, targets = next(dataloader_iter)
        loss = nn.functional.mse_loss(self.model(inputs), targets)
        assert loss.dtype == torch.float32
        self.model.backward(loss)
        self.model.step()
        return {"loss": loss}


def arguments_for(tmp_path: Path, *options: str) -> dict[str, Any]:
    (tmp_path / "c.yaml").write_text(CONFIG)
    document = changed_document(parser().parse_args([str(tmp_path / "c.yaml"), *options]))
    return dict(document["hyperparameters"])


# Precision


@pytest.mark.parametrize(("precision", "computed_in"), [("bf16", torch.bfloat16), ("fp32", torch.float32)])
def test_precision_is_that_of_the_engine_and_not_of_the_code_around_it(
    precision: str, computed_in: torch.dtype, tmp_path: Path
) -> None:
    hparams = arguments_for(tmp_path, "--precision", precision)
    describe(tmp_path, precision)
    outcome = toys.fit(Casting, hparams=hparams, max_length=Batch(3))
    assert {parameter.dtype for parameter in outcome.state.values()} == {computed_in}


def test_precision_that_a_trial_does_not_take_is_an_error(tmp_path: Path) -> None:
    describe(tmp_path, "bf16")
    with pytest.raises(InvalidDeepSpeedConfigException, match="the engine computes in fp32: the trial does not read"):
        toys.fit(toys.SimpleDS, max_length=Batch(1))
    with pytest.raises(InvalidExperimentException, match="--precision bf16: is for a DeepSpeedTrial"):
        toys.fit(toys.SimplePT, max_length=Batch(1))


def test_precision_replaces_the_one_in_the_config(tmp_path: Path) -> None:
    hparams = arguments_for(
        tmp_path,
        "--config",
        "hyperparameters.overwrite_deepspeed_args={fp16: {enabled: true}, x: 1}",
        "--precision=bf16",
    )
    assert hparams["overwrite_deepspeed_args"] == {
        "x": 1, "bf16": {"enabled": True}, "fp16": {"enabled": False}, "torch_autocast": {"enabled": False},
    }  # fmt: skip


# Device


def test_cpu_hides_the_gpus(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(CONFIG)
    assert main([str(tmp_path / "c.yaml"), "--device", "cpu", "--dry-run"]) == 0
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


def test_a_gpu_that_is_not_there_is_an_error_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    Path("c.yaml").write_text(CONFIG)
    assert main(["c.yaml", "--device", "cuda"]) == 2
    assert "--device cuda: torch shows no GPU on this machine" in capsys.readouterr().err
    assert not Path("runs").exists()


# Gradient norms


def reported_norms(folder: Path, kind: type, **hparams: Any) -> list[float]:
    describe(folder, log_grad_norm=True)
    outcome = toys.fit(kind, hparams={"clip": 0.01, **hparams}, max_length=Batch(3))
    return [float(metrics["grad_norm"]) for metrics in outcome.training if "grad_norm" in metrics]


def measured_norms(**hparams: Any) -> list[float]:
    """What clipping in a PyTorchTrial measures."""
    measured: list[float] = []
    clip = nn.utils.clip_grad_norm_

    def recording(*args: Any, **kwargs: Any) -> Any:
        norm = clip(*args, **kwargs)
        measured.append(float(norm))
        return norm

    nn.utils.clip_grad_norm_ = recording
    try:
        toys.fit(toys.SimplePT, hparams={"clip": 0.01, **hparams}, max_length=Batch(3 * hparams.get("k", 1)))
    finally:
        nn.utils.clip_grad_norm_ = clip
    return measured


def all_norms(folder: Path) -> list[list[float]]:
    os.environ.pop(ENV_VAR, None)
    return [measured_norms(), *(reported_norms(folder, toys.SimpleDS, stage=stage) for stage in (0, 1))]


@pytest.mark.parametrize("ranks", [1, 2])
def test_gradient_norm_is_that_of_all_ranks_before_clipping(ranks: int, tmp_path: Path) -> None:
    measured, plain, sharded = all_norms(tmp_path) if ranks == 1 else run_ranks(all_norms, tmp_path)[0]
    assert len(measured) == 3 and min(measured) > 0.1
    assert plain == pytest.approx(measured, rel=1e-5)
    assert sharded == pytest.approx(measured, rel=1e-5)


def test_gradient_norm_of_an_accumulated_batch_is_reported_once(tmp_path: Path) -> None:
    norms = reported_norms(tmp_path, toys.SimpleDS, k=2)
    os.environ.pop(ENV_VAR)
    assert norms == pytest.approx(measured_norms(k=2), rel=1e-5)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["metrics"]["grad_norm"] == pytest.approx(sum(norms) / 3)


def test_each_of_several_engines_has_a_norm(tmp_path: Path) -> None:
    describe(tmp_path, log_grad_norm=True)
    outcome = toys.fit(toys.GanDS, max_length=Batch(2))
    assert all({"grad_norm_0", "grad_norm_1"} <= metrics.keys() for metrics in outcome.training)


def test_option_is_the_field_of_the_config(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(CONFIG)
    options: argparse.Namespace = parser().parse_args([str(tmp_path / "c.yaml"), "--log-grad-norm"])
    assert changed_document(options)["log_grad_norm"] is True
