"""Checkpoints that the real ``determined`` package wrote, and those of the trial before its migration."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import deepspeed
import pytest
import torch
import toys
from distributed import run_ranks
from forked_python import forked_python
from test_oracle import theirs
from trial_runtime import pytorch
from trial_runtime.errors import InvalidCheckpointException
from trial_runtime.pytorch import deepspeed as det_ds
from trial_runtime.pytorch._checkpoints import determined_format
from trial_runtime.pytorch._data import rng


@pytest.fixture
def written_by_determined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, dict[str, torch.Tensor]]:
    monkeypatch.chdir(tmp_path)
    for variable in ("XDG_DATA_HOME", "USE_TORCH_DISTRIBUTED"):
        monkeypatch.setenv(variable, os.environ.get(variable, ""))
    _, state = theirs(toys.SimpleBody, 1, tmp_path)
    checkpoints = sorted(tmp_path.glob("theirs/**/state_dict.pth"), key=lambda path: path.stat().st_mtime)
    return checkpoints[-1].parent, state


def test_a_pytorch_trial_resumes_where_determined_stopped(
    written_by_determined: tuple[Path, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    checkpoint, state = written_by_determined
    at: dict[str, Any] = {"run_dir": tmp_path / "ours", "latest_checkpoint": str(checkpoint)}
    assert toys.difference(toys.fit(toys.SimplePT, max_length=pytorch.Batch(24), **at).state, state) == 0.0
    longer = toys.fit(toys.SimplePT, max_length=pytorch.Batch(26), **at)
    assert [metrics["epoch"] for metrics in longer.training] == [3, 3]


@pytest.mark.parametrize(
    ("saved", "own"), [("w", "w"), ("module.w", "w"), ("module.w", "module.w"), ("module.module.w", "module.w")]
)
def test_a_state_from_several_ranks_gets_the_models_names(saved: str, own: str) -> None:
    assert determined_format.without_ddp({saved: 1}, {own: 0}) == {own: 1}


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
        at: dict[str, Any] = {"run_dir": tmp_path / f"ours{stage}", "latest_checkpoint": str(checkpoint)}
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


def test_a_pytorch_trial_reports_that_it_cannot_load_engines(tmp_path: Path) -> None:
    toys.fit(toys.SimpleDS, {}, tmp_path / "ds", max_length=pytorch.Batch(1))
    latest = next((tmp_path / "ds" / "checkpoints").glob("*/manifest.json")).parent
    with pytest.raises(InvalidCheckpointException, match="not one of a PyTorchTrial"):
        arguments = {"max_length": pytorch.Batch(2), "latest_checkpoint": str(latest)}
        toys.fit(toys.SimplePT, {}, tmp_path / "pt", **arguments)


# A DeepSpeedTrial's, from Determined's own loop


WRITE = """
import os, sys
sys.path[:0] = {path!r}
os.environ |= {{"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}}
import importlib
importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None  # or init_distributed compiles it
import torch
import determined.pytorch as det_pytorch
from determined.pytorch import deepspeed as det_ds
from trial_runtime.pytorch._data.rng import seed_everything
import test_legacy

def on_cpu(context):  # it refuses to start without a GPU; nothing else of it is changed
    context.device = torch.device("cpu")

det_ds.DeepSpeedTrialContext._init_device = on_cpu
batches, stage = map(int, sys.argv[1:])
seed_everything(7)

class Counting(test_legacy.Counting, det_pytorch.PyTorchCallback):
    pass

class Trial(test_legacy.EngineBody, det_ds.DeepSpeedTrial):
    api = det_pytorch

    def build_callbacks(self):
        return {{"counting": Counting()}}

with det_ds.init(hparams={{"stage": stage}}, exp_conf={{"name": "x"}}) as context:
    context.set_enable_tensorboard_logging(False)
    trial = Trial(context)
    det_ds.Trainer(trial, context).fit(max_length=det_pytorch.Batch(batches), checkpoint_policy="none")
"""


class Counting:
    """A callback with state."""

    def __init__(self) -> None:
        self.epochs = 0

    def on_training_epoch_end(self, epoch_idx: int) -> None:
        del epoch_idx
        self.epochs += 1

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": self.epochs}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.epochs = state_dict["epochs"]


class EngineBody(toys.Data):
    """A trial of either package; momentum, a dropout, and data in order."""

    shuffle = False

    def __init__(self, context: Any) -> None:
        self.context = context
        net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.25), torch.nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.02)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
        engine, _, _, _ = deepspeed.initialize(
            model=net, optimizer=optimizer, lr_scheduler=scheduler, config=toys.ds_config(context.get_hparam("stage"))
        )
        self.model = context.wrap_model_engine(engine)

    def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
        del epoch_idx, batch_idx
        inputs, targets = next(dataloader_iter)
        loss = torch.nn.functional.mse_loss(self.model(inputs), targets)
        self.model.backward(loss)
        self.model.step()
        return {"loss": loss}

    def evaluate_batch(self, dataloader_iter: Any, batch_idx: int = 0) -> Any:
        del batch_idx
        inputs, targets = next(dataloader_iter)
        return {"loss": torch.nn.functional.mse_loss(self.model(inputs), targets)}


def written_by_its_deepspeed_trial(folder: Path, batches: int, stage: int) -> Path:
    """The last checkpoint of a run of so many batches."""
    script = folder / "write.py"
    script.write_text(WRITE.format(path=[str(Path(__file__).parent), str(Path(__file__).parents[1])]))
    environment = {**os.environ, "XDG_DATA_HOME": str(folder / "data"), "OMP_NUM_THREADS": "1"}
    empty = folder / "empty"
    empty.mkdir(parents=True)  # it copies the working directory into checkpoints
    command = [forked_python(), str(script), str(batches), str(stage)]
    done = subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    found = sorted(folder.glob("data/**/trial_state.pkl"), key=lambda path: path.stat().st_mtime)
    return found[-1].parent


class OurEngines(EngineBody, det_ds.DeepSpeedTrial):
    counting: Counting

    def build_callbacks(self) -> Any:
        type(self).counting = type("Callback", (Counting, pytorch.PyTorchCallback), {})()
        return {"counting": self.counting}

    def state(self) -> dict[str, torch.Tensor]:
        return {name: value.detach().clone() for name, value in self.model.module.state_dict().items()}


def in_plain_torch(checkpoint: Path, weights: dict[str, torch.Tensor], batches: tuple[int, ...]) -> list[float]:
    """Losses of these batches, from the checkpoint's weights, optimizer, learning rate and generators."""
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.25), torch.nn.Linear(8, 1))
    net.load_state_dict(weights)
    optimizer = torch.optim.AdamW(net.parameters())
    saved = torch.load(checkpoint / "model0" / "mp_rank_00_model_states.pt", weights_only=False)
    optimizer.load_state_dict(saved["optimizer"])
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.02 * 0.9 ** batches[0])
    rank = torch.load(checkpoint / "det_state_dict_rank0.pth", weights_only=False)
    rng.set_state(determined_format.rng_state(rank["rng_state"]) or {})
    inputs, targets = (torch.stack(column) for column in zip(*toys.dataset(32), strict=True))
    losses = []
    for batch in batches:
        part = slice(4 * batch, 4 * batch + 4)
        loss = torch.nn.functional.mse_loss(net(inputs[part]), targets[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.9
        losses.append(float(loss))
    return losses


@pytest.mark.parametrize("stage", [0, 1])
def test_a_deepspeed_trial_resumes_where_determineds_own_loop_stopped(stage: int, tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    checkpoint = written_by_its_deepspeed_trial(folder, 5, stage)
    assert not (checkpoint / "manifest.json").exists()
    weights = det_ds.consolidated_state_dict(checkpoint)
    outcome = toys.fit(
        OurEngines, {"stage": stage}, tmp_path / "at", max_length=pytorch.Batch(5), latest_checkpoint=str(checkpoint)
    )
    assert outcome.training == []
    assert toys.difference(outcome.state, weights) == 0.0
    further = {"max_length": pytorch.Batch(8), "latest_checkpoint": str(checkpoint)}
    outcome = toys.fit(OurEngines, {"stage": stage}, tmp_path / "further", **further)
    if stage == 0:
        losses = in_plain_torch(checkpoint, weights, (5, 6, 7))
        assert [float(metrics["loss"]) for metrics in outcome.training] == pytest.approx(losses, abs=1e-6)
    rank = torch.load(checkpoint / "det_state_dict_rank0.pth", weights_only=False)
    assert OurEngines.counting.epochs == rank["callbacks"]["counting"]["epochs"] + 1
    trial = pytorch.load_trial_from_checkpoint_path(checkpoint, OurEngines)
    assert toys.difference(trial.state(), weights) == 0.0
    with pytest.raises(ValueError, match="does not record which class"):
        pytorch.load_trial_from_checkpoint_path(checkpoint)
