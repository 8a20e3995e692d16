# ruff: noqa: ARG002 - trials and callbacks have the signatures they have
"""Schedulers are stepped by a DeepSpeedTrial's loop when they are under Determined's PyTorchTrial."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import deepspeed
import pytest
import torch
import toys
from hypothesis import given, settings
from hypothesis import strategies as st
from trial_runtime import pytorch
from trial_runtime.errors import InvalidExperimentException
from trial_runtime.pytorch import deepspeed as det_ds
from trial_runtime.pytorch._loop.progress import Progress

StepMode = pytorch.LRScheduler.StepMode


@settings(deadline=None)
@given(
    mode=st.sampled_from(StepMode),
    frequency=st.integers(1, 5),
    k=st.integers(1, 4),
    epoch_length=st.integers(1, 9),
    micro_idx=st.integers(0, 60),
)
def test_the_rule_is_that_of_the_determined_package(
    mode: StepMode, frequency: int, k: int, epoch_length: int, micro_idx: int
) -> None:
    det_pytorch = pytest.importorskip("determined.pytorch")
    controller: Any = det_pytorch._PyTorchTrialController
    context = SimpleNamespace(
        _epoch_len=epoch_length,
        _aggregation_frequency=k,
        _should_communicate_and_update=lambda: (micro_idx + 1) % k == 0,
    )
    stand_in = SimpleNamespace(context=context)
    stand_in._get_epoch_idx = lambda batch: controller._get_epoch_idx(stand_in, batch)
    steps: list[int] = []
    counting: Any = SimpleNamespace(step=lambda: steps.append(1))
    theirs = det_pytorch.LRScheduler(counting, det_pytorch.LRScheduler.StepMode(mode.value), frequency)
    controller._auto_step_lr_scheduler_per_batch(stand_in, micro_idx, theirs)

    ours = pytorch.LRScheduler(counting, mode, frequency)
    assert ours.steps_due(micro_idx, k, Progress(epoch_length=epoch_length)) == len(steps)


class Scheduled(toys.Both):
    """Reports the learning rate that each micro-batch is trained with."""

    context: Any
    training_samples = 28  # 7 micro-batches an epoch

    def make(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=1.0)

    def schedule(self, optimizer: torch.optim.Optimizer) -> None:
        self.scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        self.context.wrap_lr_scheduler(self.scheduler, StepMode(self.hparam("mode", 1)), self.hparam("frequency", 1))

    def state(self) -> dict[str, torch.Tensor]:
        return {"lr": torch.tensor(self.scheduler.get_last_lr())}


class ScheduledPT(Scheduled, pytorch.PyTorchTrial):
    def __init__(self, context: Any) -> None:
        self.context = context
        self.model = context.wrap_model(torch.nn.Linear(4, 1))
        self.optimizer = context.wrap_optimizer(self.make(self.model.parameters()))
        self.schedule(self.optimizer)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        rate = self.optimizer.param_groups[0]["lr"]
        self.context.backward(self.model(batch[0]).mean())
        self.context.step_optimizer(self.optimizer)
        return {"lr": rate}

    def evaluate_batch(self, batch: Any) -> Any:
        return {"lr": self.optimizer.param_groups[0]["lr"]}


class ScheduledDS(Scheduled, det_ds.DeepSpeedTrial):
    def __init__(self, context: Any) -> None:
        self.context = context
        net = torch.nn.Linear(4, 1)
        optimizer = self.make(net.parameters())
        self.schedule(optimizer)
        config = toys.ds_config(self.hparam("stage", 0), self.hparam("k", 1))
        engine, self.optimizer, _, _ = deepspeed.initialize(model=net, optimizer=optimizer, config=config)
        self.engine = context.wrap_model_engine(engine)

    def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
        rate = self.optimizer.param_groups[0]["lr"]
        assert [rate] == self.engine.get_lr()
        self.engine.backward(self.engine(next(dataloader_iter)[0]).mean())
        self.engine.step()
        return {"lr": rate}

    def evaluate_batch(self, dataloader_iter: Any) -> Any:
        next(dataloader_iter)
        return {"lr": self.optimizer.param_groups[0]["lr"]}


@pytest.mark.parametrize("mode", StepMode)
def test_traces_are_the_same_through_a_resume(mode: StepMode, tmp_path: Path) -> None:
    for k, frequency in [(1, 1), (2, 1), (3, 2)]:
        hparams = {"mode": mode.value, "frequency": frequency, "k": k}
        folder = tmp_path / f"{k}{frequency}"
        original = toys.fit(ScheduledPT, hparams, folder / "a", max_length=pytorch.Batch(6 * k))
        for stage in (0, 1):
            hparams["stage"] = stage
            first = toys.fit(ScheduledDS, hparams, folder / f"b{stage}", max_length=pytorch.Batch(3))
            rest = toys.fit(
                ScheduledDS, hparams, folder / f"b{stage}", max_length=pytorch.Batch(6), latest_checkpoint="latest"
            )
            assert first.training + rest.training == original.training
            assert toys.difference(rest.state, original.state) == 0.0


def test_a_plateau_is_stepped_by_the_trial_alone(tmp_path: Path) -> None:
    with det_ds.init(hparams={}, run_dir=tmp_path) as context:
        optimizer = torch.optim.SGD(torch.nn.Linear(4, 1).parameters(), lr=1.0)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        with pytest.raises(InvalidExperimentException, match="MANUAL_STEP"):
            context.wrap_lr_scheduler(plateau, StepMode.STEP_EVERY_EPOCH)
        assert context.wrap_lr_scheduler(plateau, StepMode.MANUAL_STEP) is plateau


def test_a_step_mode_must_be_one() -> None:
    with pytest.raises(TypeError, match="StepMode"):
        pytorch.LRScheduler(None, 1)  # type: ignore[arg-type]
