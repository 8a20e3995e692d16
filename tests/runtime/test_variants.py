# ruff: noqa: ARG002 - trials have the signatures they have
"""Offload, half precision, other optimizers, several engines and manual accumulation, at every ZeRO stage that allows
them: on 2 ranks against plain torch in fp32 on the whole batch, and through a resume in the middle."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import deepspeed
import pytest
import torch
import toys
from distributed import run_ranks
from test_parallel import Plain
from torch import nn
from trial_runtime import pytorch
from trial_runtime.pytorch import deepspeed as det_ds
from trial_runtime.pytorch._data import rng

BATCHES = 5
OFFLOADED = {"offload_optimizer": {"device": "cpu"}}
OWN_OPTIMIZER = {"zero_force_ds_cpu_optimizer": False}  # torch's optimizer does the offloaded steps: nothing to compile
BF16 = {"bf16": {"enabled": True}}
AUTOCAST = {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}

# name: stages, DeepSpeed config, zero_optimization, largest difference of a loss from fp32
VARIANTS: dict[str, tuple[tuple[int, ...], dict[str, Any], dict[str, Any], float]] = {
    "sgd": ((0, 1, 2, 3), {}, {}, 1e-6),
    "offloaded optimizer": ((1, 2, 3), OWN_OPTIMIZER, OFFLOADED, 1e-6),
    "all offloaded": ((3,), OWN_OPTIMIZER, {**OFFLOADED, "offload_param": {"device": "cpu"}}, 1e-6),
    "bf16": ((0, 1, 2, 3), BF16, {}, 5e-3),
    "autocast": ((0, 1, 2, 3), AUTOCAST, {}, 5e-3),
    "two engines": ((0, 1, 2, 3), {}, {}, 1e-6),
    "manual accumulation": ((0, 1, 2, 3), {}, {}, 1e-6),
}


class Variant(Plain, det_ds.DeepSpeedTrial):
    """Two networks where there are two engines, else one; ``name`` decides the rest."""

    validation_samples = 12  # three batches: two ranks have one and two

    def __init__(self, context: Any) -> None:
        self.context = context
        self.name, stage, k = (context.get_hparam(name) for name in ("name", "stage", "k"))
        _, more, zero, _ = VARIANTS[self.name]
        config = toys.ds_config(stage, k, **more)
        config["zero_optimization"].update(zero)
        self.dtype = torch.bfloat16 if "bf16" in more else torch.float32
        if self.name == "manual accumulation":
            context.disable_auto_grad_accumulation()
        self.engines = []
        for net in networks(self.name):
            engine, _, _, _ = deepspeed.initialize(model=net, optimizer=optimizer_of(self.name, net), config=config)
            self.engines.append(context.wrap_model_engine(engine))

    def losses(self, dataloader_iter: Any) -> dict[str, torch.Tensor]:
        inputs, targets = next(dataloader_iter)
        inputs = inputs.to(self.dtype)
        return {
            f"loss{index}": nn.functional.mse_loss(engine(inputs).float(), targets)
            for index, engine in enumerate(self.engines)
        }

    def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
        calls = []
        for _ in range(self.context.get_num_micro_batches_per_slot() if self.name == "manual accumulation" else 1):
            losses = self.losses(dataloader_iter)
            for engine, loss in zip(self.engines, losses.values(), strict=True):
                engine.backward(loss)
                engine.step()
            calls.append(losses)
        return {name: torch.stack([losses[name].detach() for losses in calls]).mean() for name in calls[0]}

    def evaluate_batch(self, dataloader_iter: Any) -> Any:
        return self.losses(dataloader_iter)


def networks(name: str) -> list[nn.Module]:
    nets = [Plain().net() for _ in range(2)]
    return nets if name == "two engines" else nets[:1]


def optimizer_of(name: str, net: nn.Module) -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    return torch.optim.AdamW(net.parameters(), lr=0.02, weight_decay=0.1)


def plain(name: str, k: int, ranks: int) -> tuple[list[dict[str, float]], dict[str, float]]:
    """Losses of each micro-batch of all ranks together (of each batch, if accumulated by hand), and at the end."""
    rng.seed_everything(toys.SEED)
    nets = networks(name)
    optimizers = [optimizer_of(name, net) for net in nets]
    data = list(Plain().build_training_data_loader())
    reported: list[dict[str, float]] = []
    for batch in range(BATCHES):
        for micro in range(batch * k, batch * k + k):
            shares = (data[(micro * ranks + rank) % len(data)] for rank in range(ranks))
            inputs, targets = (torch.cat(parts) for parts in zip(*shares, strict=True))
            losses = [nn.functional.mse_loss(net(inputs), targets) for net in nets]
            for loss in losses:
                (loss / k).backward()
            reported.append({f"loss{index}": loss.item() for index, loss in enumerate(losses)})
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    if name == "manual accumulation":
        groups = [reported[first : first + k] for first in range(0, len(reported), k)]
        reported = [{key: sum(losses[key] for losses in group) / k for key in group[0]} for group in groups]
    loader = type("Data", (Plain,), {"validation_samples": Variant.validation_samples})().build_validation_data_loader()
    with torch.no_grad():
        final = {
            f"loss{index}": sum(nn.functional.mse_loss(net(x), y).item() for x, y in loader) / len(loader)
            for index, net in enumerate(nets)
        }
    return reported, final


def compare(folder: Path, name: str, half: int) -> list[str]:
    """What is not as it should be, on the chief."""
    stages, _, _, tolerance = VARIANTS[name]
    problems = []
    for stage, k in itertools.product(stages, (1, 2)):
        if (stage + k) % 2 != half:
            continue
        hparams = {"name": name, "stage": stage, "k": k}
        own = folder / f"{stage}{k}"
        length, middle = pytorch.Batch(BATCHES), pytorch.Batch([3])
        whole = toys.fit(Variant, hparams, own / "whole", max_length=length, checkpoint_period=middle)
        first, _ = sorted((own / "whole" / "checkpoints").glob("0*"))
        rest = toys.fit(Variant, hparams, own / "rest", max_length=length, latest_checkpoint=first)
        assert 0 < len(rest.training) < len(whole.training) or not whole.training
        if not whole.validation:
            continue
        losses, final = plain(name, k, toys.world_size())
        ended = {key: float(whole.validation[-1][1][key]) for key in final}
        off = max(toys.metric_difference(whole.training, losses), toys.metric_difference([ended], [final]))
        resumed = toys.metric_difference(rest.training, whole.training[-len(rest.training) :])
        if off > tolerance or resumed != 0.0 or len(whole.training) != len(losses):
            problems.append(f"stage {stage}, k {k}: {off:.1e} from plain torch, {resumed:.1e} after the resume")
    return problems


# Each stage with either accumulation; all variants have each stage, and either accumulation.
@pytest.mark.parametrize(
    ("name", "half"),
    [pytest.param(name, 1, id=name) for name in VARIANTS]
    + [pytest.param(name, 0, id=f"{name}-others", marks=pytest.mark.slow) for name in VARIANTS],
)
def test_it_trains_as_plain_torch_does_and_resumes_exactly(name: str, half: int, tmp_path: Path) -> None:
    assert run_ranks(compare, tmp_path, name, half, timeout=240)[0] == []


def test_half_precision_takes_no_step_before_the_first(tmp_path: Path) -> None:
    hparams = {"name": "bf16", "stage": 0, "k": 1}
    with det_ds.init(hparams=hparams, run_dir=tmp_path) as context:
        engine = Variant(context).engines[0]
        before = [parameter.detach().clone() for parameter in engine.module.parameters()]
        masters = [parameter for group in engine.optimizer.fp32_groups for parameter in group]
        assert [master.tolist() for master in masters] == [parameter.float().tolist() for parameter in before]
        assert not engine.optimizer.optimizer.state
