"""Faults that were found in conversions of real trials, planted again: 2 ranks show each of them.

Each was silent: it trains without an error, and some kept even a proof from seeing it.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from ds_migrate.options import Options
from ds_verify.runs import Round, Settings, TrainingRun, make_job
from ds_verify.select_trial import select_trial
from ds_verify.verdict import headline, outcome
from ds_verify.working_copies import Sides, open_sides

from equivalence.runs import Runs

STEPS, RANKS = 12, 2

pytestmark = pytest.mark.timeout(600)

MODULE = '''
import torch
from determined.pytorch import DataLoader, LRScheduler, PyTorchTrial
from torch import nn


class Switching(torch.optim.Optimizer):
    """SGD at first, ASGD after some steps, each with separate state."""

    def __init__(self, params, lr, switch):
        params = list(params)
        super().__init__(params, {"lr": lr})
        self.sgd = torch.optim.SGD(params, lr=lr, momentum=0.9)
        self.asgd = torch.optim.ASGD(params, lr=lr)
        self.switch, self.steps = switch, 0

    def step(self, closure=None):
        self.steps += 1
        inner = self.sgd if self.steps <= self.switch else self.asgd
        for group, shown in zip(inner.param_groups, self.param_groups):
            group["lr"] = shown["lr"]
        inner.step()

    def state_dict(self):
        return {"sgd": self.sgd.state_dict(), "asgd": self.asgd.state_dict(), "steps": self.steps}

    def load_state_dict(self, state):
        self.sgd.load_state_dict(state["sgd"])
        self.asgd.load_state_dict(state["asgd"])
        self.steps = state["steps"]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.norm, self.two = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1)
        self.scale = 1.0

    def forward(self, x):
        return self.two(torch.relu(self.norm(self.one(x)))) * self.scale

    def loss(self, x):
        return nn.functional.mse_loss(self(x), x[:, :1])


class Base(PyTorchTrial):
    def make_loader(self, samples):
        made = torch.Generator().manual_seed(samples)
        return DataLoader(torch.randn(samples, 4, generator=made), batch_size=self.context.get_per_slot_batch_size())

    def build_training_data_loader(self):
        return self.make_loader(64)

    def build_validation_data_loader(self):
        return self.make_loader(24)

    def evaluate_batch(self, batch):
        return {"validation_loss": self.model.loss(self.context.to_device(batch))}

'''
SCHEDULED = '''
class Trial(Base):
    """Accumulates; its schedule ends with the run; its optimizer has a state_dict() of its own."""

    def __init__(self, context):
        self.context = context
        self.model = self.context.wrap_model(Net())
        self.opt = self.context.wrap_optimizer(Switching(self.model.parameters(), lr=0.05, switch=2))
        total = self.context.get_experiment_config()["searcher"]["max_length"]["batches"]
        self.context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.LambdaLR(self.opt, lambda step: 1 - step / total),
            LRScheduler.StepMode.STEP_EVERY_BATCH,
        )

    def train_batch(self, batch, epoch_idx, batch_idx):
        x = self.context.to_device(batch)
        loss = nn.functional.mse_loss(self.model(x), x[:, :1])
        self.context.backward(loss)
        self.context.step_optimizer(self.opt)
        return {"loss": loss}
'''
BY_RANK = '''
class Trial(Base):
    """Its learning rate follows the loss of each rank; its teacher's statistics are each rank's own until a restart."""

    def __init__(self, context):
        self.context = context
        self.teacher = self.context.wrap_model(Net().requires_grad_(False))
        self.model = self.context.wrap_model(Net())
        self.opt = self.context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9))

    def train_batch(self, batch, epoch_idx, batch_idx):
        x = self.context.to_device(batch)
        with torch.no_grad():
            self.teacher(x)
        loss = nn.functional.mse_loss(self.model(x), x[:, :1])
        self.opt.param_groups[0]["lr"] = 0.05 * min(1.0, loss.item())
        self.context.backward(loss)
        self.context.step_optimizer(self.opt)
        return {"loss": loss}
'''
ON_WRAPPER = '''
class Trial(Base):
    """Sets an attribute of its wrapped model, which DistributedDataParallel kept from the forward pass."""

    def __init__(self, context):
        self.context = context
        self.model = self.context.wrap_model(Net())
        self.opt = self.context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.05))

    def train_batch(self, batch, epoch_idx, batch_idx):
        self.model.scale = 0.5
        x = self.context.to_device(batch)
        loss = nn.functional.mse_loss(self.model(x), x[:, :1])
        self.context.backward(loss)
        self.context.step_optimizer(self.opt)
        return {"loss": loss}
'''
CONFIG = """
name: trial
entrypoint: model_def:Trial
hyperparameters: {global_batch_size: 8}
searcher: {name: single, metric: validation_loss, max_length: {batches: 40}}
optimizations: {aggregation_frequency: %d}
"""
TRIALS = {"scheduled": (SCHEDULED, 2), "by_rank": (BY_RANK, 1), "on_wrapper": (ON_WRAPPER, 1)}


@dataclass(frozen=True)
class Fault:
    """What a wrong conversion of a trial would have, and where the sides part first.

    changes: file, text of the conversion, text in its place; none where the conversion itself is meant to differ.
    """

    name: str
    trial: str
    first: str
    changes: tuple[tuple[str, str, str], ...] = ()

    def __str__(self) -> str:
        return self.name


FAULTS = [
    Fault(
        "a_length_that_the_trial_reads_is_divided",
        "scheduled",
        r"batch 2: learning rates ",
        (("model_def.py", "get_experiment_config(in_micro_batches=True)", "get_experiment_config()"),),
    ),
    Fault(
        "buffers_are_shared_before_an_evaluation_past_the_wrapper",
        "scheduled",
        r"batch 4: validation validation_loss ",
        (
            (
                "model_def.py",
                '        return {"validation_loss"',
                "        for buffer in self.model.module.buffers():\n"
                "            torch.distributed.broadcast(buffer, 0)\n"
                '        return {"validation_loss"',
            ),
        ),
    ),
    Fault(
        "the_state_of_an_optimizer_is_lost_on_resuming",
        "scheduled",
        r"batch 10: ",
        (("model_def.py", '        self.sgd.load_state_dict(state["sgd"])\n', "        return\n"),),
    ),
    Fault(
        "a_learning_rate_that_differs_by_rank_at_stage_1",
        "by_rank",
        r"batch 1: norm of model parameters",
        (
            ("ds_config.json", '"stage": 0', '"stage": 1'),
            ("ds_config.json", "{\n", '{\n  "zero_allow_untested_optimizer": true,\n'),
        ),
    ),
    Fault("an_attribute_of_the_wrapper_acts", "on_wrapper", r"batch 1: training loss "),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wrong_numbers")


def converted(trial: str, folder: Path) -> Sides:
    source = folder / trial / "source"
    if not source.exists():
        text, accumulation = TRIALS[trial]
        source.mkdir(parents=True)
        (source / "model_def.py").write_text(MODULE + text)
        (source / "const.yaml").write_text(CONFIG % accumulation)
    work = folder / trial / "sides"
    shutil.rmtree(work, ignore_errors=True)
    return open_sides(source, work, "converted", None, Options())


def train(name: str, source: Path, runs: Runs, folder: Path, *, nudge: bool = False) -> TrainingRun:
    made = make_job(name, select_trial(source), source, folder / "runs" / name, RANKS)
    return runs.training(replace(made, steps=STEPS, nudge=nudge))


def verdict(sides: Sides, trial: str, name: str, runs: Runs, folder: Path) -> str:
    """Return what ds-verify reports on 2 ranks of the conversion as it lies in its folder."""
    original = train(f"wrong-numbers-{trial}-original", sides.original, runs, folder)
    control = train(f"wrong-numbers-{trial}-original-control", sides.original, runs, folder, nudge=True)
    candidate = train(f"wrong-numbers-{trial}-{name}", sides.converted, runs, folder)
    assert original.failure is None, original.failure
    settings = Settings(STEPS, (RANKS,))
    return headline([outcome(Round(RANKS, original, control, candidate, settings))], STEPS)


@pytest.mark.parametrize("trial", ["scheduled", "by_rank"])
def test_the_conversion_itself_is_right(trial: str, runs: Runs, folder: Path) -> None:
    found = verdict(converted(trial, folder), trial, "right", runs, folder)
    assert found.startswith("same: 12 batches with 2 ranks"), found


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_of_a_real_conversion_is_caught(fault: Fault, runs: Runs, folder: Path) -> None:
    sides = converted(fault.trial, folder)
    for name, right, wrong in fault.changes:
        path = sides.converted / name
        text = path.read_text()
        assert right in text, f"{name} has no {right!r}:\n{text}"
        path.write_text(text.replace(right, wrong, 1))
    found = verdict(sides, fault.trial, fault.name, runs, folder)
    assert re.match(f"different: with 2 ranks from {fault.first}", found), found


def test_an_attribute_of_the_wrapper_has_a_review(folder: Path) -> None:
    findings = [finding for _, finding in converted("on_wrapper", folder).findings if finding.severity.name == "REVIEW"]
    assert len(findings) == 1 and "scale" in findings[0].message
