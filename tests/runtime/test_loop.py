# ruff: noqa: ARG002, ARG005 - trials and callbacks have the signatures they have
"""The loop does what its docstring says, when it says."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import toys
from deepspeed.runtime.dataloader import RepeatingLoader
from trial_runtime import pytorch
from trial_runtime.pytorch._loop.progress import Progress
from trial_runtime.pytorch._loop.training_loop import TrainingLoop

HOOKS = [name for name in vars(pytorch.PyTorchCallback) if name.startswith("on_") or name.endswith("state_dict")]
METHODS = ["build_training_data_loader", "build_validation_data_loader", "train_batch", "evaluate_batch"]


def recording(kind: type, log: list[str]) -> type:
    """The trial, and a callback with every hook, noting what is called."""

    def note(name: str, original: Any) -> Any:
        def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
            log.append(name)
            return original(self, *args, **kwargs)

        noted.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
        return noted

    callback = type(
        "Noting",
        (pytorch.PyTorchCallback,),
        {name: note(name, getattr(pytorch.PyTorchCallback, name)) for name in HOOKS},
    )
    methods = {name: note(name, getattr(kind, name)) for name in METHODS}
    return type("Noted", (kind,), {**methods, "build_callbacks": lambda self: {"noting": callback()}})


@pytest.mark.filterwarnings("ignore:.*on_checkpoint_end:FutureWarning")
@pytest.mark.parametrize("kind", [toys.SimplePT, toys.SimpleDS])
def test_hooks_come_in_the_order_of_the_docstring(kind: type, tmp_path: Path) -> None:
    text = inspect.getdoc(TrainingLoop.run) or ""
    told = [word for word in re.findall(r"\w+", text.split("::")[1]) if word in HOOKS + METHODS]
    small = type("Small", (kind,), {"training_samples": 4, "validation_samples": 4})
    log: list[str] = []
    toys.fit(recording(small, log), run_dir=tmp_path, max_length=pytorch.Epoch(1))
    log.clear()
    arguments: dict[str, Any] = {"validation_period": pytorch.Epoch(1), "checkpoint_period": pytorch.Batch(1)}
    toys.fit(
        recording(small, log), run_dir=tmp_path, max_length=pytorch.Epoch(2), latest_checkpoint="latest", **arguments
    )
    assert sorted(told) == sorted(HOOKS + METHODS), "the docstring names every hook once"
    assert log == told


def trained(kind: type = toys.SimplePT, **arguments: Any) -> tuple[list[str], toys.Outcome]:
    """What happened in a run of 8 batches an epoch: "(" and ")" around epochs, Report, Validate, Checkpoint."""
    log: list[str] = []

    class Note(pytorch.PyTorchCallback):
        def on_training_epoch_start(self, epoch_idx: int) -> None:
            log.append(f"({epoch_idx}")

        def on_training_epoch_end(self, epoch_idx: int) -> None:
            log.append(f"{epoch_idx})")

        def on_training_workload_end(self, avg_metrics: Any, batch_metrics: Any) -> None:
            log.append(f"R{avg_metrics['batches']}")

        def on_validation_end(self, metrics: Any) -> None:
            log.append("V")

        def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
            log.append("C")

    noted = type("Noted", (kind,), {"build_callbacks": lambda self: {"note": Note()}})
    return log, toys.fit(noted, **arguments)


@pytest.mark.parametrize("kind", [toys.SimplePT, toys.SimpleDS])
def test_every_period_fires_when_it_is_due(kind: type, tmp_path: Path) -> None:
    log, outcome = trained(
        kind,
        run_dir=tmp_path,
        max_length=pytorch.Batch(20),
        validation_period=pytorch.Batch(9),
        checkpoint_period=pytorch.Epoch(2),
        reporting_period=pytorch.Batch([3, 11]),
    )
    assert log == ["(0", "R3", "0)", "(1", "R9", "V", "R11", "1)", "R16", "C", "(2", "R18", "V", "R20", "V", "C"]
    assert [metrics["epoch"] for metrics in outcome.training] == [0] * 8 + [1] * 8 + [2] * 4


def test_policy_all_saves_after_each_validation(tmp_path: Path) -> None:
    log, _ = trained(
        run_dir=tmp_path,
        max_length=pytorch.Epoch(1),
        validation_period=pytorch.Batch(4),
        checkpoint_policy="all",
        step_zero_validation=True,
    )
    assert log == ["V", "(0", "R4", "V", "C", "0)", "R8", "V", "C"]


def test_test_mode_trains_and_validates_one_batch(tmp_path: Path) -> None:
    log, outcome = trained(run_dir=tmp_path, max_length=pytorch.Epoch(9), test_mode=True)
    assert log == ["(0", "R1", "V", "C"]
    assert len(outcome.training) == 1


def test_a_stop_request_leaves_after_a_checkpoint_without_validating(tmp_path: Path) -> None:
    class Stopping(toys.SimplePT):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if batch_idx == 3:
                self.context.set_stop_requested(True)
            return super().train_batch(batch, epoch_idx, batch_idx)

    log, outcome = trained(Stopping, run_dir=tmp_path, max_length=pytorch.Epoch(9), reporting_period=pytorch.Batch(2))
    assert log == ["(0", "R2", "R4", "C"]
    assert len(outcome.training) == 4


def test_an_error_still_shuts_callbacks_down(tmp_path: Path) -> None:
    closed: list[str] = []

    class Closing(pytorch.PyTorchCallback):
        def __init__(self, name: str) -> None:
            self.name = name

        def on_trial_shutdown(self) -> None:
            closed.append(self.name)

    class Failing(toys.SimplePT):
        def build_callbacks(self) -> Any:
            return {"a": Closing("a"), "b": Closing("b")}

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        toys.fit(Failing, run_dir=tmp_path, max_length=pytorch.Batch(1))
    assert closed == ["b", "a"]


@pytest.mark.parametrize(("length", "k"), [(7, 2), (8, 2), (5, 3), (3, 3), (1, 1), (10, 4)])
def test_an_epoch_ends_after_as_many_steps_as_a_pytorch_trial_made(length: int, k: int) -> None:
    progress = Progress(micro_batches=k, epoch_length=length)
    ends = []
    for batch in range(60):
        progress.batches = batch
        if progress.at_epoch_end:
            ends.append((progress.epochs, batch))
    assert ends == [(epoch, epoch * length // k) for epoch in range(1, len(ends) + 1)]


@pytest.mark.parametrize(("kind", "k", "length"), [(toys.SimplePT, 1, 8), (toys.SimpleDS, 1, 8), (toys.SimpleDS, 2, 4)])
def test_trials_read_the_epochs_length_in_batches(kind: Any, k: int, length: int, tmp_path: Path) -> None:
    class Telling(kind):  # type: ignore[misc]
        def train_batch(self, *args: Any, **kwargs: Any) -> Any:
            super().train_batch(*args, **kwargs)
            return {"length": self.context._epoch_len}

    outcome = toys.fit(Telling, {"k": k}, tmp_path, max_length=pytorch.Batch(1))
    assert outcome.training == [{"length": length}] * k


def test_a_repeating_loader_of_deepspeed_has_epochs(tmp_path: Path) -> None:
    class Repeating(toys.SimpleDS):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            context.disable_dataset_reproducibility_checks()

        def build_training_data_loader(self) -> Any:
            return RepeatingLoader(torch.utils.data.DataLoader(toys.dataset(12), batch_size=4))

    outcome = toys.fit(Repeating, run_dir=tmp_path, max_length=pytorch.Epoch(2))
    assert [metrics["epoch"] for metrics in outcome.training] == [0, 0, 0, 1, 1, 1]


def test_an_endless_dataset_without_length_trains(tmp_path: Path) -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            yield from toys.dataset(12)

    class Streaming(toys.SimplePT):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            context.experimental.disable_dataset_reproducibility_checks()

        def build_training_data_loader(self) -> Any:
            return torch.utils.data.DataLoader(Stream(), batch_size=4)

    outcome = toys.fit(Streaming, run_dir=tmp_path, max_length=pytorch.Batch(7))
    assert [metrics["epoch"] for metrics in outcome.training] == [0] * 7  # three batches a pass, read again and again


def test_a_foreign_loader_is_refused_with_the_way_out(tmp_path: Path) -> None:
    class Foreign(toys.SimpleDS):
        def build_training_data_loader(self) -> Any:
            return torch.utils.data.DataLoader(toys.dataset(8), batch_size=4)

    with pytest.raises(RuntimeError, match=r"context\.disable_dataset_reproducibility_checks\(\)"):
        toys.fit(Foreign, run_dir=tmp_path, max_length=pytorch.Batch(1))
