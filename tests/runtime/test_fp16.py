# ruff: noqa: ARG002 - trials have the signatures they have
"""Training in float16 is plain torch's: scaled losses, skipped steps, clipping, accumulation, resumes, exports.

On the CPU, whose accelerator says that it has no float16; torch computes it there all the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import deepspeed
import pytest
import torch
import toys
from deepspeed.accelerator import get_accelerator
from distributed import run_ranks
from test_parallel import Pipeline
from torch import nn
from trial_runtime import pytorch
from trial_runtime.errors import InvalidExperimentException
from trial_runtime.pytorch import deepspeed as det_ds

FACTOR = 8  # of losses: float16 ends at 65504
PRECISIONS: dict[str, dict[str, Any]] = {
    # Skips steps at first; then the scale grows and shrinks all the time.
    "fp16": {"fp16": {"enabled": True, "initial_scale_power": 14, "hysteresis": 1, "loss_scale_window": 2}},
    "growing": {"fp16": {"enabled": True, "initial_scale_power": 4, "hysteresis": 1, "loss_scale_window": 2}},
    "fixed": {"fp16": {"enabled": True, "loss_scale": 128}},
    "autocast": {"torch_autocast": {"enabled": True, "dtype": "float16"}},
}


def network() -> nn.Sequential:
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    generator = torch.Generator().manual_seed(3)
    for parameter in net.parameters():
        parameter.data.uniform_(-0.5, 0.5, generator=generator)
    return net


def optimizer_of(net: nn.Module) -> torch.optim.Optimizer:
    first, *others = net.parameters()
    groups: list[dict[str, Any]] = [{"params": [first], "lr": 0.005}, {"params": others}]
    return torch.optim.SGD(groups, lr=0.002, momentum=0.9)  # sees how large gradients are, other than Adam


class Half(toys.Data, det_ds.DeepSpeedTrial):
    shuffle = False
    training_samples = 128
    validation_samples = 8

    def __init__(self, context: Any) -> None:
        self.context = context
        net = network()
        optimizer = optimizer_of(net)
        config = toys.ds_config(
            context.get_hparam("stage"),
            context.get_hparams().get("k", 1),
            gradient_clipping=context.get_hparams().get("clip", 0.0),
            **PRECISIONS[context.get_hparam("precision")],
        )
        self.schedule = context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9), toys.StepMode.STEP_EVERY_OPTIMIZER_STEP
        )
        engine = deepspeed.initialize(model=net, optimizer=optimizer, config=config)[0]
        self.engine = det_ds.float32_outside(context.wrap_model_engine(engine))

    def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
        inputs, targets = next(dataloader_iter)
        loss = FACTOR * nn.functional.mse_loss(self.engine(inputs), targets)
        self.engine.backward(loss)
        self.engine.step()
        return {"loss": loss}

    def evaluate_batch(self, dataloader_iter: Any) -> Any:
        inputs, targets = next(dataloader_iter)
        return {"loss": nn.functional.mse_loss(self.engine(inputs), targets)}


@contextlib.contextmanager
def float16_on_the_cpu() -> Iterator[None]:
    with mock.patch.object(type(get_accelerator()), "is_fp16_supported", lambda _: True):
        yield


Result = tuple[list[float], dict[str, torch.Tensor], tuple[int, float]]
"""Losses of micro-batches, the weights in float32, and the number of skipped steps with the loss scale."""


def train(folder: Path, end: int = 8, **hparams: Any) -> Result:
    """Train, or train on; the weights come out of the last checkpoint."""
    seen: list[tuple[int, float]] = []

    class Counted(Half):
        def evaluate_batch(self, dataloader_iter: Any) -> Any:
            torchs = getattr(self.engine.torch_autocast_z0_gradscaler, "scaler", None)
            scale = torchs.get_scale() if torchs is not None else self.engine.optimizer.loss_scale
            seen.append((self.engine.skipped_steps, scale))
            return super().evaluate_batch(dataloader_iter)

    latest = "latest" if (folder / "checkpoints" / "latest").exists() else None
    with float16_on_the_cpu():
        outcome = toys.fit(Counted, hparams, folder, max_length=pytorch.Batch(end), latest_checkpoint=latest)
    name = (folder / "checkpoints" / "latest").read_text().strip()
    weights = det_ds.consolidated_state_dict(folder / "checkpoints" / name)
    return [float(metrics["loss"]) for metrics in outcome.training], weights, seen[-1]


def plain(precision: str, end: int = 8, k: int = 1, clip: float = 0.0, ranks: int = 1) -> Result:
    """:func:`train` of plain torch."""
    own = PRECISIONS[precision].get("fp16")
    masters, net = network(), network().half()
    if own is not None:  # the float32 copies begin as what float16 holds of the weights
        masters.half().float()
    model = masters if own is None else net
    optimizer = optimizer_of(masters)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    scale = 2.0**16 if own is None else own.get("loss_scale") or 2.0 ** own["initial_scale_power"]
    batches = iter(torch.utils.data.DataLoader(toys.dataset(Half.training_samples), batch_size=4))
    losses, skipped, last = [], 0, -1
    for step in range(end):
        for parameter, half in zip(masters.parameters(), net.parameters(), strict=True):
            half.data.copy_(parameter.data)
            parameter.grad = half.grad = None
        for _ in range(k):
            losses.append(0.0)
            for _ in range(ranks):
                inputs, targets = next(batches)
                with torch.autocast("cpu", torch.float16, enabled=own is None):
                    outputs = model(inputs if own is None else inputs.half()).float()
                loss = FACTOR * nn.functional.mse_loss(outputs, targets)
                (loss / k * scale).backward()
                losses[-1] += float(loss) / ranks
        for parameter, mine in zip(masters.parameters(), model.parameters(), strict=True):
            assert mine.grad is not None
            parameter.grad = mine.grad.float() / scale / ranks
        if all(bool(p.grad.isfinite().all()) for p in masters.parameters() if p.grad is not None):
            if clip:
                nn.utils.clip_grad_norm_(masters.parameters(), clip)
            optimizer.step()
            if own is not None and not own.get("loss_scale") and step - last > 1 and (step - last - 1) % 2 == 0:
                scale *= 2
        else:
            skipped, last = skipped + 1, step
            scale /= 1 if own is not None and own.get("loss_scale") else 2
        schedule.step()
    return losses, {name: p.detach().clone() for name, p in masters.named_parameters()}, (skipped, scale)


def agree(found: Any, expected: Any, tolerance: float) -> None:
    assert found[0] == pytest.approx(expected[0], rel=tolerance, abs=tolerance)
    assert toys.difference(found[1], expected[1]) <= tolerance
    assert found[2] == expected[2]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_float16_is_plain_torch(stage: int, precision: str, tmp_path: Path) -> None:
    expected = plain(precision, clip=0.5)
    assert (expected[2][0] > 1) == (precision in ("fp16", "autocast"))
    agree(train(tmp_path, stage=stage, precision=precision, clip=0.5), expected, 1e-6)


def test_optimizers_that_deepspeed_fuses_are_plain_torch_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepspeed.runtime.engine.FusedAdam", torch.optim.SGD)  # its own ones need a GPU
    train(tmp_path, 5, stage=0, precision="fp16")
    losses, *others = train(tmp_path, stage=0, precision="fp16")
    expected = plain("fp16")
    agree((losses, *others), (expected[0][5:], *expected[1:]), 1e-6)


def on_this_rank(folder: Path, precision: str, stages: Sequence[int]) -> list[Any]:
    found = []
    for stage in stages:
        whole = train(folder / f"{stage}", stage=stage, precision=precision, k=2)
        train(folder / f"{stage} parts", 5, stage=stage, precision=precision, k=2)
        losses, weights, skipped = train(folder / f"{stage} parts", stage=stage, precision=precision, k=2)
        assert losses == whole[0][-len(losses) :], stage
        assert toys.difference(weights, whole[1]) == 0.0, stage
        assert skipped == whole[2], stage
        found.append(whole)
    return found


# Every stage, and every kind of scaling: DeepSpeed has one class for stage 0, one for 1 and 2, and one for 3.
@pytest.mark.parametrize(
    ("precision", "stages", "tolerance"),
    [("fp16", (0, 1, 3), None), ("fixed", (2, 3), 2e-3), ("autocast", (0, 1), 2e-3)]
    + [
        pytest.param(precision, stages, tolerance, marks=pytest.mark.slow, id=f"{precision}-others")
        for precision, stages, tolerance in (("fp16", (2,), None), ("fixed", (0, 1), 2e-3), ("autocast", (2, 3), 2e-3))
    ],
)
def test_ranks_accumulate_in_float16_and_resume_bit_for_bit(
    precision: str, stages: Sequence[int], tolerance: float | None, tmp_path: Path
) -> None:
    for found in run_ranks(on_this_rank, tmp_path, precision, stages)[0]:
        if tolerance is not None:  # else it is rounding which sums of several ranks overflow
            agree(found, plain(precision, k=2, ranks=2), tolerance)


def first_part(folder: Path) -> None:
    for stage in (1, 2, 3):
        train(folder / str(stage), 5, stage=stage, precision="growing")


def test_the_loss_scale_is_kept_with_another_number_of_ranks(tmp_path: Path) -> None:
    run_ranks(first_part, tmp_path)
    expected = plain("growing", ranks=2)
    for stage in (1, 2, 3):
        losses, *others = train(tmp_path / str(stage), stage=stage, precision="growing", k=2)
        pairs = [sum(losses[i : i + 2]) / 2 for i in range(0, len(losses), 2)]
        agree((pairs, *others), (expected[0][5:], *expected[1:]), 2e-3)


class Pair(toys.PartsDS):
    """Two engines, one loss."""

    def make(self) -> None:
        super().make()
        self.net[0].half()  # has no optimizer, so no engine casts it

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs.half()).float()


@pytest.mark.parametrize("stage", [0, 1])
def test_engines_that_share_a_loss_need_a_scale_that_stays(
    stage: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, states = toys.ds_config, []
    for block in ({"enabled": True}, {"enabled": True, "loss_scale": 1}, {"enabled": True, "loss_scale": 256}):
        monkeypatch.setattr(toys, "ds_config", lambda *args, own=block, **more: make(*args, fp16=own, **more))
        with float16_on_the_cpu():
            if "loss_scale" not in block:
                with pytest.raises(InvalidExperimentException, match="Write a fixed one"):
                    toys.fit(Pair, {"stage": stage}, tmp_path, max_length=pytorch.Batch(1))
            else:
                states.append(toys.fit(Pair, {"stage": stage}, tmp_path, max_length=pytorch.Batch(4)).state)
    assert toys.difference(*states) < 2e-3


class FullPipeline(Pipeline):
    def optimizer(self, net: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)


class HalfPipeline(FullPipeline):
    """Two stages in float16."""

    def __init__(self, context: Any) -> None:
        make = toys.ds_config
        with mock.patch.object(toys, "ds_config", lambda *args: make(*args, **PRECISIONS["fixed"])):
            super().__init__(context)

    def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
        return super().train_batch(halved(dataloader_iter), epoch_idx, batch_idx)

    def evaluate_batch(self, dataloader_iter: Any) -> Any:
        return super().evaluate_batch(halved(dataloader_iter))


def halved(batches: Any) -> Any:
    return ((inputs.half(), targets.half()) for inputs, targets in batches)


def pipelines(folder: Path) -> list[list[float]]:
    """The losses in float32, and in float16 at both stages that pipelines allow."""
    Pipeline.validation_samples = 16
    found = []
    with float16_on_the_cpu():
        for kind, stage in ((FullPipeline, 0), (HalfPipeline, 0), (HalfPipeline, 1)):
            outcome = toys.fit(kind, {"stage": stage}, folder / f"{kind.__name__}{stage}", max_length=pytorch.Batch(6))
            found.append([float(metrics["loss"]) for metrics in outcome.training])
    return found


def test_a_pipeline_scales_its_losses(tmp_path: Path) -> None:
    full, *halves = run_ranks(pipelines, tmp_path)[0]
    for half in halves:
        assert half == pytest.approx(full, rel=5e-3)
