# ruff: noqa: ARG002 - trials and callbacks have the signatures they have
"""A signal makes all ranks save the same step and leave with its exit code; resuming goes on from there."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import toys
from distributed import run_ranks
from trial_runtime import pytorch


class Interrupted(toys.SimpleDS):
    """Gets a signal in its fourth batch, on the last rank alone."""

    number = signal.SIGTERM

    def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
        distributed = self.context.distributed
        if batch_idx == 3 and distributed.rank == distributed.size - 1 and self.context.get_initial_batch() == 0:
            os.kill(os.getpid(), self.number)
        return super().train_batch(dataloader_iter, epoch_idx, batch_idx)


def interrupt(folder: Path, number: signal.Signals) -> int:
    kind = type("Trial", (Interrupted,), {"number": number})
    with pytest.raises(SystemExit) as left:
        toys.fit(kind, run_dir=folder, max_length=pytorch.Batch(10_000))
    assert left.value.code == 128 + number
    latest = (folder / "checkpoints" / "latest").read_text()
    batches = int(latest.split("-")[0])
    whole = toys.fit(toys.SimpleDS, run_dir=folder / "whole", max_length=pytorch.Batch(batches + 3))
    rest = toys.fit(kind, run_dir=folder, max_length=pytorch.Batch(batches + 3), latest_checkpoint="latest")
    assert toys.difference(whole.state, rest.state) == 0.0
    return batches


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_rank_leaves_after_the_batch(number: signal.Signals, tmp_path: Path) -> None:
    assert interrupt(tmp_path, number) == 4


def on_this_rank(folder: Path) -> int:
    return interrupt(folder, signal.SIGTERM)


def test_all_ranks_leave_after_the_same_batch(tmp_path: Path) -> None:
    first, second = run_ranks(on_this_rank, tmp_path)
    assert first == second < 5_000


class Drawing(toys.SimplePT):
    """Draws numbers in training and in evaluation."""

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        with torch.no_grad():
            next(self.model.parameters()).add_(torch.rand(()))
        return super().train_batch(batch, epoch_idx, batch_idx)

    def evaluate_batch(self, batch: Any, batch_idx: int = 0) -> dict[str, Any]:
        torch.rand(())
        return super().evaluate_batch(batch)


class StoppedAtTheEnd(Drawing):
    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        if batch_idx == 3:
            signal.raise_signal(signal.SIGTERM)
        return super().train_batch(batch, epoch_idx, batch_idx)


def test_validation_that_a_stop_left_out_is_in_the_checkpoint_that_training_is_extended_from(tmp_path: Path) -> None:
    at_the_end: dict[str, Any] = {"max_length": pytorch.Batch(4)}
    extended: dict[str, Any] = {"max_length": pytorch.Batch(6), "latest_checkpoint": "latest"}
    toys.fit(Drawing, run_dir=tmp_path / "whole", **at_the_end)
    whole = toys.fit(Drawing, run_dir=tmp_path / "whole", **extended)
    with pytest.raises(SystemExit):
        toys.fit(StoppedAtTheEnd, run_dir=tmp_path / "stopped", **at_the_end)
    assert toys.fit(Drawing, run_dir=tmp_path / "stopped", **at_the_end, latest_checkpoint="latest").validation
    stopped = toys.fit(Drawing, run_dir=tmp_path / "stopped", **extended)
    assert toys.difference(whole.state, stopped.state) == 0.0


def test_a_second_signal_acts_at_once(tmp_path: Path) -> None:
    class Impatient(toys.SimplePT):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            signal.raise_signal(signal.SIGINT)  # os.kill may reach another thread, and two signals become one
            signal.raise_signal(signal.SIGINT)
            return torch.zeros(())

    with pytest.raises(KeyboardInterrupt):
        toys.fit(Impatient, run_dir=tmp_path, max_length=pytorch.Batch(5))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
