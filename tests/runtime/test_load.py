"""Trials and weights out of checkpoints, in one plain process."""

from __future__ import annotations

import gc
import itertools
import json
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
import toys
import trial_runtime as det
from distributed import run_ranks
from forked_python import forked_python
from safetensors.torch import load_file
from trial_runtime import pytorch
from trial_runtime.errors import InvalidCheckpointException, UntrustedCheckpointError
from trial_runtime.pytorch import deepspeed as det_ds


def checkpoint_in(folder: Path) -> Path:
    return folder / "checkpoints" / (folder / "checkpoints" / "latest").read_text().strip()


def saved(name: str, stage: int, folder: Path) -> dict[str, torch.Tensor]:
    outcome = toys.fit(getattr(toys, name), {"stage": stage}, folder, max_length=pytorch.Batch(2))
    return outcome.state if stage < 3 else {}


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_migrated_trial_comes_from_any_stage_with_its_weights_in_its_models(stage: int, tmp_path: Path) -> None:
    first, _ = run_ranks(saved, "SimpleDS", stage, tmp_path)
    checkpoint = checkpoint_in(tmp_path)
    trial = pytorch.load_trial_from_checkpoint_path(checkpoint, toys.SimpleDS)
    weights = {f"model.{name}": value for name, value in det_ds.consolidated_state_dict(checkpoint).items()}
    assert toys.difference(trial.state(), weights) == 0.0
    if first:
        assert toys.difference(trial.state(), first) == 0.0
    file = det_ds.export(checkpoint, tmp_path / "weights.safetensors")
    assert toys.difference({f"model.{name}": value for name, value in load_file(file).items()}, weights) == 0.0
    assert not trial.model.module.training


def test_a_trial_with_several_engines_comes_back_whole(tmp_path: Path) -> None:
    state = toys.fit(toys.PartsDS, {"stage": 1}, tmp_path, max_length=pytorch.Batch(2)).state
    trial = pytorch.load_trial_from_checkpoint_path(checkpoint_in(tmp_path), toys.PartsDS)
    assert toys.difference(trial.state(), state) == 0.0


def test_a_pytorch_trial_comes_back(tmp_path: Path) -> None:
    state = toys.fit(toys.SimplePT, {}, tmp_path, max_length=pytorch.Batch(2)).state
    trial = pytorch.load_trial_from_checkpoint_path(str(checkpoint_in(tmp_path)), toys.SimplePT)
    assert toys.difference(trial.state(), state) == 0.0


class Parallel(toys.SimplePT):
    """Its model has a child that is named as a DistributedDataParallel's."""

    def __init__(self, context: Any) -> None:
        wrap = context.wrap_model
        context.wrap_model = lambda model: wrap(torch.nn.DataParallel(model))
        super().__init__(context)
        context.wrap_model = wrap


def test_a_child_named_module_keeps_its_name(tmp_path: Path) -> None:
    state = toys.fit(Parallel, {}, tmp_path, max_length=pytorch.Batch(2)).state
    assert "model.module.0.weight" in state
    trial = pytorch.load_trial_from_checkpoint_path(checkpoint_in(tmp_path), Parallel)
    assert toys.difference(trial.state(), state) == 0.0
    resumed = toys.fit(Parallel, {}, tmp_path, max_length=pytorch.Batch(2), latest_checkpoint="latest")
    assert toys.difference(resumed.state, state) == 0.0


def test_a_trial_with_fewer_models_takes_the_first(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = toys.fit(toys.GanPT, {}, tmp_path, max_length=pytorch.Batch(1)).state

    class Generator(toys.GanPT):
        def __init__(self, context: Any) -> None:
            self.make()
            self.models = {"generator": context.wrap_model(self.generator)}

    trial = pytorch.load_trial_from_checkpoint_path(checkpoint_in(tmp_path), Generator)
    assert toys.difference(trial.state(), {k: v for k, v in state.items() if k.startswith("generator")}) == 0.0
    assert "has the state of 2 models, the trial has 1" in caplog.text
    toys.fit(toys.SimplePT, {}, tmp_path / "simple", max_length=pytorch.Batch(1))
    with pytest.raises(InvalidCheckpointException, match="has the state of 1 models, the trial has 2"):
        pytorch.load_trial_from_checkpoint_path(checkpoint_in(tmp_path / "simple"), toys.GanPT)


def test_a_checkpoint_from_before_load_data_comes_back(tmp_path: Path) -> None:
    state = toys.fit(toys.SimplePT, {}, tmp_path, max_length=pytorch.Batch(1)).state
    checkpoint = checkpoint_in(tmp_path)
    facts = json.loads((checkpoint / "load_data.json").read_text())
    old = {
        "framework": "torch-1.9",
        "hparams": facts["hparams"],
        "experiment_config": {"entrypoint": "toys:SimplePT"},
    }
    (checkpoint / "metadata.json").write_text(json.dumps(old))
    for name in ("load_data.json", "manifest.json"):
        (checkpoint / name).unlink()
    with pytest.raises(UntrustedCheckpointError, match="Give the class as trial_class"):
        pytorch.load_trial_from_checkpoint_path(checkpoint)
    trial = pytorch.load_trial_from_checkpoint_path(checkpoint, trust_checkpoint=True)
    assert toys.difference(trial.state(), state) == 0.0


def test_a_damaged_checkpoint_is_reported_as_one(tmp_path: Path) -> None:
    toys.fit(toys.SimpleDS, {}, tmp_path, max_length=pytorch.Batch(1))
    checkpoint = checkpoint_in(tmp_path)
    (checkpoint / "code").mkdir(exist_ok=True)
    (checkpoint / "code" / "mine.py").touch()
    pytorch.load_trial_from_checkpoint_path(checkpoint, toys.SimpleDS)
    (weights,) = (checkpoint / "model0").glob("mp_rank_00*")
    weights.write_bytes(b"cut off")

    with pytest.raises(InvalidCheckpointException, match=rf"is damaged: model0/{weights.name}: 7 bytes, should be"):
        pytorch.load_trial_from_checkpoint_path(checkpoint, toys.SimpleDS)


def test_a_folder_that_is_no_checkpoint_is_reported_as_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidCheckpointException, match=r"load_data\.json"):
        pytorch.load_trial_from_checkpoint_path(tmp_path)


TRIAL = """
import torch, toys
from helpers.net import make
from trial_runtime import pytorch


class Trial(toys.Data, pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(make())
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))

    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = self.model(batch[0]).mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return loss

    def evaluate_batch(self, batch):
        return {"mean": self.model(batch[0]).mean()}


if __name__ == "__main__":
    with pytorch.init(hparams={"a": 1}) as context:
        pytorch.Trainer(Trial(context), context).fit(max_length=pytorch.Batch(1))
"""


def test_code_goes_with_the_checkpoint_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "helpers").mkdir()
    (tmp_path / "helpers" / "__init__.py").write_text("")
    (tmp_path / "helpers" / "net.py").write_text("import torch\ndef make():\n    return torch.nn.Linear(4, 1)\n")
    (tmp_path / "train.py").write_text(TRIAL)
    (tmp_path / "ds_config.json").write_text("{}")
    (tmp_path / "not_imported.py").write_text("")
    (tmp_path / "data.bin").write_bytes(b"0" * 100)
    monkeypatch.setenv("PYTHONPATH", str(Path(toys.__file__).parent))
    subprocess.run([forked_python(), "train.py"], cwd=tmp_path, check=True, capture_output=True, timeout=200)
    checkpoint = checkpoint_in(tmp_path)
    code = sorted(str(path.relative_to(checkpoint / "code")) for path in (checkpoint / "code").rglob("*.*"))
    assert code == ["ds_config.json", "helpers/__init__.py", "helpers/net.py", "train.py"]
    monkeypatch.chdir("/")
    trial = pytorch.load_trial_from_checkpoint_path(checkpoint)
    assert type(trial).__name__ == "Trial"
    assert "train" not in sys.modules
    assert not list((checkpoint / "code").rglob("__pycache__"))


@pytest.mark.parametrize("directory", ["new", "elsewhere"])
def test_modules_of_the_same_name_live_side_by_side(
    directory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("old", "new", "elsewhere"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "its_definition.py").write_text(f"which = {name!r}")
    monkeypatch.chdir(tmp_path / directory)
    monkeypatch.syspath_prepend(str(tmp_path / "new"))
    import its_definition as new

    with det.import_from_path(tmp_path / "old"):
        import its_definition as old

        with pytest.raises(RuntimeError, match="inside itself"), det.import_from_path(tmp_path / "old"):
            pass
    assert (old.which, new.which) == ("old", "new")
    assert sys.modules.pop("its_definition") is new


def test_modules_come_back_although_garbage_collection_imports_one_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "set_aside.py").write_text("which = 'old'")
    mine = types.ModuleType("set_aside")
    monkeypatch.setitem(sys.modules, "set_aside", mine)
    new = itertools.count()

    def import_one(_phase: str, _info: dict[str, int]) -> None:
        monkeypatch.setitem(sys.modules, f"imported_by_garbage_{next(new)}", types.ModuleType("imported_by_garbage"))

    threshold = gc.get_threshold()
    with det.import_from_path(tmp_path):
        gc.callbacks.append(import_one)
        gc.set_threshold(1, 1_000_000)  # the young generation alone, which is quick
    gc.set_threshold(*threshold)
    gc.callbacks.remove(import_one)
    assert next(new) > 0
    assert sys.modules["set_aside"] is mine


def test_a_context_for_trying_out_comes_from_a_config() -> None:
    config = {"hyperparameters": {"global_batch_size": 8, "lr": {"type": "const", "val": 0.5}}, "data": {"path": "x"}}
    with pytest.warns(FutureWarning, match="from_config"):
        context = det_ds.DeepSpeedTrialContext.from_config(config)
    assert (context.get_hparam("lr"), context.get_data_config()) == (0.5, {"path": "x"})
    assert context.get_per_slot_batch_size() == 8


def test_a_converted_trial_comes_back_in_another_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Path(__file__).parents[2] / "fixtures" / "guide" / "after"
    folder = tmp_path / "experiment"
    shutil.copytree(source, folder)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = ["-m", "trial_runtime.train", "const.yaml", "--test", "--run-dir", "run"]
    done = subprocess.run(
        [forked_python(), *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    checkpoint = checkpoint_in(folder / "run").rename(tmp_path / "checkpoint")
    shutil.rmtree(folder)
    monkeypatch.chdir("/")
    trial = pytorch.load_trial_from_checkpoint_path(checkpoint)
    (engine,) = trial.context.models
    saved = det_ds.consolidated_state_dict(checkpoint)
    assert toys.difference(dict(engine.module.state_dict()), saved) == 0.0
