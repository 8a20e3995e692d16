"""PyTorchTrial here is PyTorchTrial there: the same trial under the real ``determined`` package."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import toys
from distributed import run_ranks
from torch import nn
from trial_runtime import pytorch
from trial_runtime.pytorch._data import rng


class Reseed:
    """The package's loop draws from the generators before training; ours does too, but not as often."""

    def on_training_start(self) -> None:
        rng.seed_everything(toys.SEED)


def with_callbacks(body: type, base: type, callback: type, records: list[Any]) -> type:
    class Noting(Reseed, callback):  # type: ignore[misc]
        def on_training_workload_end(self, avg_metrics: Any, batch_metrics: Any) -> None:
            records.append(("training", avg_metrics, batch_metrics))

        def on_validation_end(self, metrics: Any) -> None:
            records.append(("validation", dict(metrics)))

    class Trial(body, base):  # type: ignore[misc]
        def build_callbacks(self) -> dict[str, Any]:
            return {"noting": Noting()}

    return Trial


def ours(body: type, k: int, folder: Path) -> tuple[list[Any], dict[str, torch.Tensor]]:
    records: list[Any] = []
    trial = with_callbacks(body, pytorch.PyTorchTrial, pytorch.PyTorchCallback, records)
    arguments = {"max_length": pytorch.Epoch(3), "validation_period": pytorch.Batch(3)}
    state = toys.fit(trial, {"k": k}, folder / "ours", reporting_period=pytorch.Batch(2), **arguments).state
    return records, state


def theirs(body: type, k: int, folder: Path) -> tuple[list[Any], dict[str, torch.Tensor]]:
    os.environ["XDG_DATA_HOME"] = str(folder / "theirs")
    os.environ["USE_TORCH_DISTRIBUTED"] = "true"
    (folder / "empty").mkdir(exist_ok=True)
    os.chdir(folder / "empty")  # it copies the working directory into checkpoints
    import determined.pytorch as det_pytorch
    from determined import core

    records: list[Any] = []
    base = with_callbacks(body, det_pytorch.PyTorchTrial, det_pytorch.PyTorchCallback, records)
    trial_class = type("Trial", (base,), {"api": det_pytorch})
    size = toys.world_size()
    distributed = core.DistributedContext.from_torch_distributed(chief_ip="127.0.0.1") if size > 1 else None
    rng.seed_everything(toys.SEED)
    hparams = {"global_batch_size": 4 * size, "k": k}
    with det_pytorch.init(hparams=hparams, aggregation_frequency=k, distributed=distributed) as context:
        context.set_enable_tensorboard_logging(False)
        trial = trial_class(context)
        det_pytorch.Trainer(trial, context).fit(
            max_length=det_pytorch.Epoch(3),
            validation_period=det_pytorch.Batch(3),
            reporting_period=det_pytorch.Batch(2),
            checkpoint_policy="none",
        )
        if size > 1:  # the chief's last message is lost when it leaves before the others have read it
            torch.distributed.barrier()
        return records, trial.state()


class EvaluatedPastWrapper(toys.SimpleBody):
    """The model's own method evaluates: DistributedDataParallel's forward, which shares buffers, is not run."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        bare = self.model.module if isinstance(self.model, nn.parallel.DistributedDataParallel) else self.model
        type(bare).loss = lambda self, inputs, targets: nn.functional.mse_loss(self(inputs), targets)

    def evaluate_batch(self, batch: Any) -> dict[str, Any]:
        inputs, targets = batch
        self.seen.update(float(inputs.sum()))
        return {"validation_loss": self.model.loss(inputs, targets)}


def compare(name: str, k: int, folder: Path) -> None:
    body = {"simple": toys.SimpleBody, "gan": toys.GanBody, "past wrapper": EvaluatedPastWrapper}[name]
    sys.path.append(str(Path(toys.__file__).parent))
    here, there = ours(body, k, folder), theirs(body, k, folder)
    assert toys.difference(here[1], there[1]) <= 1e-6
    assert [record[0] for record in here[0]] == [record[0] for record in there[0]]
    for own, original in zip(here[0], there[0], strict=True):
        metrics, wanted = own[1], original[1]
        assert metrics.keys() == wanted.keys()
        for key in wanted:
            assert float(metrics[key]) == pytest.approx(float(wanted[key]), abs=1e-6), (own[0], key)
        if own[0] == "training":
            assert toys.metric_difference(own[2], original[2]) <= 1e-6


@pytest.mark.parametrize("name", ["simple", "gan"])
def test_one_rank(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("XDG_DATA_HOME", "USE_TORCH_DISTRIBUTED"):
        monkeypatch.setenv(variable, os.environ.get(variable, ""))
    for k in (1, 2):
        compare(name, k, tmp_path)


def on_this_rank(name: str, k: int, folder: Path) -> None:
    own = folder / f"rank{torch.distributed.get_rank()}"
    own.mkdir()
    compare(name, k, own)


@pytest.mark.parametrize(("name", "k"), [("simple", 2), ("gan", 1), ("past wrapper", 1)])
def test_two_ranks(name: str, k: int, tmp_path: Path) -> None:
    run_ranks(on_this_rank, name, k, tmp_path)
