# ruff: noqa: ARG002 - trials have the signatures they have
"""What Determined's guides and reference promise, tried sentence by sentence where no other test does."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import toys
import trial_runtime as det
from distributed import run_ranks
from torch import nn
from trial_runtime import core, errors, pytorch
from trial_runtime.experimental import client
from trial_runtime.pytorch import deepspeed as det_ds
from trial_runtime.tensorboard.metric_writers.pytorch import TorchWriter

# The Trainer guide


class GuideTrial(toys.Data, pytorch.PyTorchTrial):
    """As the guide has it: with hyperparameters of its own beside the context, and ``evaluate_batch(batch)``."""

    shuffle = True

    def __init__(self, context: Any, hparams: dict[str, Any]) -> None:
        self.context = context
        self.model = context.wrap_model(nn.Sequential(nn.Linear(4, 1)))
        self.optimizer = context.wrap_optimizer(torch.optim.Adadelta(self.model.parameters(), lr=hparams["lr"]))

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        loss = nn.functional.mse_loss(self.model(batch[0]), batch[1])
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any) -> Any:  # type: ignore[override]
        return {"validation_loss": nn.functional.mse_loss(self.model(batch[0]), batch[1])}


def guide(folder: Path) -> tuple[int, list[Any]]:
    """The guide's script for several processes: torch.distributed is up, and the context is given."""
    os.environ["USE_TORCH_DISTRIBUTED"] = "true"
    os.chdir(folder)
    hparams = {"global_batch_size": 8, "lr": 0.02}
    recorder = pytorch.MetricsRecorder()
    with det.pytorch.init(
        hparams=hparams, distributed=core.DistributedContext.from_torch_distributed(chief_ip="localhost")
    ) as train_context:
        train_context.add_metrics_sink(recorder)
        trial = GuideTrial(train_context, hparams)
        trainer = det.pytorch.Trainer(trial, train_context)
        trainer.fit(
            max_length=pytorch.Epoch(1),
            checkpoint_period=pytorch.Batch([2, 3]),
            validation_period=pytorch.Batch(2),
        )
        assert isinstance(trial.model, nn.parallel.DistributedDataParallel)
        weights = torch.cat([p.detach().flatten() for p in trial.model.parameters()])
        assert all(weights.equal(other) for other in train_context.distributed.allgather(weights))
        return train_context.get_per_slot_batch_size(), [step for step, _ in recorder.validation]


def test_the_guides_distributed_script_runs(tmp_path: Path) -> None:
    assert run_ranks(guide, tmp_path) == [(4, [2, 4]), (4, [])]
    assert len(list((tmp_path / "checkpoints").glob("*/manifest.json"))) == 3


def test_the_old_profiler_call_does_nothing_and_reports_it(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytorch.init() as context:
        trainer = pytorch.Trainer(GuideTrial(context, {"lr": 0.1}), context)
        trainer.configure_profiler(enabled=True, sync_timings=True, begin_on_batch=0, end_after_batch=10)
        with caplog.at_level(logging.WARNING):
            trainer.fit(max_length=pytorch.Batch(1), profiling_enabled=True)
    told = " ".join(record.message for record in caplog.records)
    assert told.count("use context.set_profiler()") == 2


def test_step_6_loads_a_checkpoint_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_model_def.py").write_text(
        "from trial_runtime import pytorch\nimport torch, torch.utils.data\n\n\n"
        "class MyTrial(pytorch.PyTorchTrial):\n"
        "    def __init__(self, context):\n"
        "        self.context = context\n"
        "        self.model = context.wrap_model(torch.nn.Linear(1, 1))\n"
        "        self.opt = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))\n\n"
        "    def train_batch(self, batch, epoch_idx, batch_idx):\n"
        "        self.context.backward(self.model(batch).sum())\n"
        "        self.context.step_optimizer(self.opt)\n"
        "        return {}\n\n"
        "    def evaluate_batch(self, batch):\n"
        "        return {'mean': self.model(batch).mean()}\n\n"
        "    def build_training_data_loader(self):\n"
        "        return pytorch.DataLoader(torch.ones(4, 1), batch_size=2)\n\n"
        "    build_validation_data_loader = build_training_data_loader\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    import my_model_def as today  # type: ignore[import-not-found]

    with pytorch.init() as train_context:
        trained = today.MyTrial(train_context)
        pytorch.Trainer(trained, train_context).fit(max_length=pytorch.Batch(3))

    uuid = Path("checkpoints/latest").read_text().strip()
    assert client.get_checkpoint("latest").uuid == uuid
    metadata = client.get_checkpoint(uuid).metadata
    assert metadata["progress"]["batches"] == metadata["steps_completed"] == 3
    path = client.get_checkpoint(uuid).download(tmp_path / "downloaded")
    with det.import_from_path(path + "/code/"):
        import my_model_def
    assert my_model_def is not today
    context = pytorch.CheckpointLoadContext()
    my_trial = my_model_def.MyTrial(context)
    saved = torch.load(Path(path) / "state_dict.pth", weights_only=False)["models_state_dict"][0]
    my_trial.model.load_state_dict(saved)
    assert my_trial.model.weight.equal(trained.model.weight)
    assert pytorch.load_trial_from_checkpoint_path(path).model.weight.equal(trained.model.weight)
    with pytest.raises(errors.CheckpointNotFound, match=uuid):
        client.get_checkpoint("another")


# The DeepSpeed reference


class Keeping(toys.SimpleDS):
    """Keeps a file of its own in checkpoints."""

    note = "fresh"

    def save(self, context: Any, path: Path) -> None:
        super().save(context, path)
        (path / f"note-{context.distributed.rank}.json").write_text(json.dumps("kept"))

    def load(self, context: Any, load_path: Path) -> None:
        super().load(context, load_path)
        Keeping.note = json.loads((load_path / f"note-{context.distributed.rank}.json").read_text())


def test_save_and_load_can_be_overridden(tmp_path: Path) -> None:
    toys.fit(Keeping, run_dir=tmp_path, max_length=pytorch.Batch(1))
    assert Keeping.note == "fresh"
    toys.fit(Keeping, run_dir=tmp_path, max_length=pytorch.Batch(2), latest_checkpoint="latest")
    assert Keeping.note == "kept"


@pytest.mark.parametrize("kind", [toys.SimplePT, toys.SimpleDS])
def test_a_trial_can_be_tried_out_by_hand_with_a_context_from_a_config(kind: Any) -> None:
    config = {"hyperparameters": {"global_batch_size": 4}, "data": {"path": "here"}}
    with pytest.warns(FutureWarning, match="from_config"):
        context = kind.trial_context_class.from_config(config)
    trial = kind(context)
    before = {name: value.clone() for name, value in trial.state().items()}
    on_engines = issubclass(kind, det_ds.DeepSpeedTrial)
    for epoch_idx in range(2):
        for batch_idx, batch in enumerate(trial.build_training_data_loader()):
            metrics = trial.train_batch(iter([batch]) if on_engines else batch, epoch_idx, batch_idx)
            assert metrics["loss"].item() > 0
    assert toys.difference(before, trial.state()) > 0
    assert context.get_data_config() == {"path": "here"}
    context._close()


def test_a_warning_explains_how_to_ask_for_the_batch_size(caplog: pytest.LogCaptureFixture) -> None:
    with pytorch.init(hparams={"global_batch_size": 9}) as context, caplog.at_level(logging.WARNING):
        assert context.get_hparam("global_batch_size") == 9
    assert "get_per_slot_batch_size()" in caplog.text


def test_two_engines_of_different_batch_sizes_go_by_the_first(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    import deepspeed

    def engine(size: int) -> Any:
        net = nn.Linear(1, 1)
        config = {**toys.ds_config(), "train_micro_batch_size_per_gpu": size}
        return deepspeed.initialize(model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1), config=config)[0]

    with det_ds.init(hparams={}, run_dir=tmp_path) as context, caplog.at_level(logging.WARNING):
        with pytest.raises(errors.InvalidExperimentException, match="wrap_model_engine"):
            context.get_train_micro_batch_size_per_gpu()
        with pytest.raises(errors.InvalidExperimentException, match="wrap_model_engine"):
            context.get_num_micro_batches_per_slot()
        for size in (4, 2):
            context.wrap_model_engine(engine(size))
        assert context.get_train_micro_batch_size_per_gpu() == 4
        assert not context.use_pipeline_parallel
    assert "the loop goes by the first engine's: 4 and 1" in caplog.text


def test_engines_are_made_from_hyperparameters_as_attributes(tmp_path: Path) -> None:
    import deepspeed

    (tmp_path / "ds_config.json").write_text(json.dumps(toys.ds_config(stage=1)))
    hparams = {"deepspeed_config": str(tmp_path / "ds_config.json"), "width": 3}
    with det_ds.init(hparams=hparams, run_dir=tmp_path) as context:
        args = det_ds.AttrDict(context.get_hparams())
        net = nn.Linear(args.width, 1)
        optimizer = torch.optim.Adam(net.parameters())
        engine, _, _, _ = deepspeed.initialize(args=args, model=net, optimizer=optimizer)
        assert context.wrap_model_engine(engine).zero_optimization_stage() == 1


# PyTorchTrial's switches


class Mixed(toys.SimplePT):
    """Automatic mixed precision, and batches that the trial moves itself."""

    def __init__(self, context: Any) -> None:
        context.experimental.use_amp()
        context.experimental.disable_auto_to_device()
        super().__init__(context)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        return super().train_batch(self.context.to_device(batch), epoch_idx, batch_idx)


class ByHand(toys.SimplePT):
    """The trial's own GradScaler."""

    def __init__(self, context: Any) -> None:
        self.scaler = context.wrap_scaler(torch.amp.GradScaler("cpu", enabled=False))
        super().__init__(context)
        self.model = context.autocast_forward_pass(self.model)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.model(inputs), targets)
        self.seen.update(float(inputs.sum()))
        self.context.backward(self.scaler.scale(loss))
        self.context.step_optimizer(self.optimizer, scaler=self.scaler)
        self.scaler.update()
        return {"loss": loss, "epoch": epoch_idx}


@pytest.mark.parametrize("kind", [Mixed, ByHand])
def test_mixed_precision_changes_nothing_without_an_accelerator(kind: type, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"max_length": pytorch.Batch(4), "validation_period": pytorch.Batch(2)}
    plain = toys.fit(toys.SimplePT, run_dir=tmp_path / "a", **arguments)
    mixed = toys.fit(kind, run_dir=tmp_path / "b", max_length=pytorch.Batch(2))
    rest = toys.fit(kind, run_dir=tmp_path / "b", max_length=pytorch.Batch(4), latest_checkpoint="latest")
    assert toys.metric_difference([*mixed.training, *rest.training], plain.training) == 0.0


def test_the_writer_writes_where_the_run_has_its_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    writer = TorchWriter()
    writer.add_scalar("loss", 0.5, 1)
    writer.writer.add_text("words", "some", 1)
    writer.flush()
    writer.reset()
    assert list((tmp_path / "tensorboard").glob("events*"))
