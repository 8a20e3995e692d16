"""Trials trained by ds-train: the original code, the lengths of the config, the same numbers through a crash."""

import json
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from ds_migrate.files.discovery import discover
from ds_migrate.files.writer import apply
from ds_migrate.options import Options
from ds_migrate.pipeline import migrate
from forked_python import forked_python
from trial_runtime._run_record import update_record
from trial_runtime.train.cli import main
from trial_runtime.train.config.errors import ConfigError
from trial_runtime.train.options import parser
from trial_runtime.train.run.end_of_run import end_of_run
from trial_runtime.train.run.prepare import given_directory
from trial_runtime.train.run.run_directory import open_run

pytestmark = pytest.mark.skipif(find_spec("deepspeed") is None, reason="needs the extra runtime")

TRIAL = """
import os
import signal
from pathlib import Path

import torch
from determined import pytorch
from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext


class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        x = torch.tensor([index / 24, 1.0])
        return x, 3 * x[0] - 1


class LineTrial(PyTorchTrial):
    def __init__(self, context: PyTorchTrialContext) -> None:
        self.context = context
        self.model = context.wrap_model(torch.nn.Linear(2, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters(), lr=context.get_hparam("lr")))

    def loss(self, batch):
        x, y = batch
        return torch.nn.functional.mse_loss(self.model(x).squeeze(1), y)

    def train_batch(self, batch, epoch_idx, batch_idx):
        crash = self.context.get_hparams().get("crash")
        if crash and batch_idx == 5 and self.context.distributed.rank == 0 and not Path(crash).exists():
            Path(crash).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        loss = self.loss(batch)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss, "index": float(batch_idx)}

    def evaluate_batch(self, batch, batch_idx):
        return {"validation_loss": self.loss(batch)}

    def build_training_data_loader(self):
        return DataLoader(Points(), batch_size=self.context.get_per_slot_batch_size(), shuffle=True)

    def build_validation_data_loader(self):
        return DataLoader(Points(), batch_size=self.context.get_per_slot_batch_size())


class NotATrial:
    pass
"""
SCRIPT = """
from determined import pytorch
from model_def import LineTrial

if __name__ == "__main__":
    with pytorch.init() as context:
        pytorch.Trainer(LineTrial(context), context).fit()
"""
CONFIG = """
name: line
entrypoint: model_def:LineTrial
hyperparameters: {global_batch_size: 4, lr: 1e-1, crash: null}
searcher: {name: single, metric: validation_loss, max_length: {epochs: 2}}
min_validation_period: {batches: 3}
min_checkpoint_period: {batches: 4}
scheduling_unit: 2
checkpoint_policy: none
reproducibility: {experiment_seed: 3}
"""

Line = dict[str, Any]


def write_experiment(folder: Path) -> Path:
    folder.mkdir()
    (folder / "model_def.py").write_text(TRIAL)
    (folder / "train.py").write_text(SCRIPT)
    (folder / "c.yaml").write_text(CONFIG)
    return folder


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    return write_experiment(tmp_path / "exp")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of an undisturbed run on one slot."""
    folder = tmp_path_factory.mktemp("whole")
    code, err = ds_train(write_experiment(folder / "exp") / "c.yaml", folder / "run")
    assert code == 0, err
    return folder / "run"


def ds_train(config: Path, run: Path, *options: str) -> tuple[int, str]:
    command = [forked_python(), "-m", "trial_runtime.train", str(config), "--run-dir", str(run), *options]
    done = subprocess.run(command, cwd=config.parent.parent, capture_output=True, text=True, timeout=200)
    return done.returncode, done.stderr


def reported(run: Path, group: str) -> list[Line]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{"at": line["steps_completed"], **line["metrics"]} for line in lines if line["group"] == group]


def check_lengths(run: Path) -> None:
    """Hold what was reported and saved against the config's periods."""
    assert [line["at"] for line in reported(run, "validation")] == [3, 6, 9, 12]
    assert [line["at"] for line in reported(run, "training")] == [2, 3, 4, 6, 8, 9, 10, 12]
    assert {path.name[:8] for path in (run / "checkpoints").iterdir() if path.is_dir()} == {
        "00000004",
        "00000008",
        "00000012",
    }


def test_an_original_trial_trains_by_the_configs_lengths(whole: Path) -> None:
    check_lengths(whole)


def test_a_script_takes_what_fit_leaves_open_from_the_config(experiment: Path, whole: Path, tmp_path: Path) -> None:
    code, err = ds_train(experiment / "c.yaml", tmp_path / "run", "--config", "entrypoint=python3 train.py")

    assert code == 0, err
    check_lengths(tmp_path / "run")
    for group in ("training", "validation"):
        assert reported(tmp_path / "run", group) == reported(whole, group)


def after_the_crash(run: Path, group: str) -> list[Line]:
    return [line for line in reported(run, group) if line["at"] > 5]


def test_two_ranks_of_which_one_is_killed_end_with_the_same_numbers(experiment: Path, tmp_path: Path) -> None:
    undisturbed, run = tmp_path / "undisturbed", tmp_path / "run"
    code, err = ds_train(experiment / "c.yaml", undisturbed, "--slots", "2")
    assert code == 0, err
    check_lengths(undisturbed)
    options = ("--slots", "2", "--hparam", f"crash={tmp_path / 'crashed'}")

    code, err = ds_train(experiment / "c.yaml", run, *options)
    assert code == 128 + 9, err
    assert "rank 0 was ended by SIGKILL" in err
    code, err = ds_train(experiment / "c.yaml", run, *options)
    assert code == 0, err

    for group in ("training", "validation"):
        assert after_the_crash(run, group) == after_the_crash(undisturbed, group)


def test_a_killed_rank_is_started_again_and_ends_with_the_same_numbers(
    experiment: Path, whole: Path, tmp_path: Path
) -> None:
    config, run = experiment / "c.yaml", tmp_path / "run"
    config.write_text(CONFIG.replace("crash: null", f"crash: {tmp_path / 'crashed'}") + "max_restarts: 1\n")

    code, err = ds_train(config, run)

    assert code == 0, err
    assert "(restart 1 of max_restarts 1)" in err
    for group in ("training", "validation"):
        assert after_the_crash(run, group) == after_the_crash(whole, group)


@pytest.fixture
def converted(experiment: Path) -> Path:
    """The experiment as ds-migrate leaves it, accumulating over 2 batches."""
    (experiment / "c.yaml").write_text(CONFIG + "optimizations: {aggregation_frequency: 2}\n")
    apply(migrate(discover([str(experiment)]), Options()), experiment)
    assert "DeepSpeedTrial" in (experiment / "model_def.py").read_text()
    return experiment


def test_a_converted_trial_killed_on_two_ranks_and_started_again_ends_with_the_same_numbers(
    converted: Path, tmp_path: Path
) -> None:
    undisturbed, run = tmp_path / "undisturbed", tmp_path / "run"
    code, err = ds_train(converted / "c.yaml", undisturbed, "--slots", "2")
    assert code == 0, err
    options = ("--slots", "2", "--hparam", f"crash={tmp_path / 'crashed'}")

    code, err = ds_train(converted / "c.yaml", run, *options)
    assert code == 128 + 9, err
    code, err = ds_train(converted / "c.yaml", run, *options)
    assert code == 0, err

    assert {path.name for path in (run / "checkpoints").iterdir()} > {"latest"}
    for group in ("training", "validation"):
        lines = reported(undisturbed, group)
        assert lines[-1]["at"] == 6  # 2 epochs of 6 batches, 2 a step
        assert reported(run, group)[-2:] == lines[-2:]


def test_accumulation_that_a_deepspeed_trial_does_not_read_is_an_error(converted: Path, tmp_path: Path) -> None:
    code, err = ds_train(converted / "c.yaml", tmp_path / "run", "--config", "optimizations.aggregation_frequency=2")

    assert code == 2
    assert "optimizations.aggregation_frequency: 2 is for a PyTorchTrial" in err
    assert "overwrite_deepspeed_args.gradient_accumulation_steps" in err


def test_mistakes_in_a_deepspeed_config_are_one_error_and_exit_code_2(converted: Path, tmp_path: Path) -> None:
    (converted / "wrong.json").write_text('{"zero_optimization": {"stge": 1}, "amp": {"enabled": false}}')
    code, err = ds_train(
        converted / "c.yaml", tmp_path / "run", "--config", "hyperparameters.deepspeed_config=wrong.json"
    )

    assert code == 2
    assert "ds-train: The DeepSpeed config (wrong.json) has 2 problems:" in err
    assert "Traceback" not in err


def test_another_run_starts_from_a_checkpoint_and_saves_to_shared_storage(
    experiment: Path, whole: Path, tmp_path: Path
) -> None:
    first, second, config = tmp_path / "first", tmp_path / "second", experiment / "c.yaml"
    code, err = ds_train(config, first, "--config", "searcher.max_length.epochs=1")
    assert code == 0, err
    config.write_text(CONFIG + "checkpoint_storage: {type: shared_fs, host_path: shared, save_trial_best: 0}\n")

    code, err = ds_train(config, second, "--latest-checkpoint", str(first))

    assert code == 0, err
    assert reported(second, "validation") == reported(whole, "validation")[2:]
    assert "1 checkpoint removed, as checkpoint_storage asks" in err
    (storage,) = (experiment / "shared").iterdir()
    assert [path.name[:8] for path in storage.iterdir() if path.is_dir()] == ["00000012"]

    code, err = ds_train(config, tmp_path / "third", "--latest-checkpoint", str(second))

    assert code == 0, err
    assert "Nothing to train: 12 batches, 2 epochs are done, and 2 epochs are asked for." in err
    assert "(ds-train: --config searcher.max_length.epochs=N)" in err

    code, err = ds_train(config, tmp_path / "fourth", "--latest-checkpoint", str(second), "--test")

    assert code == 0, err
    assert [line["at"] for line in reported(tmp_path / "fourth", "validation")] == [13]


def test_a_damaged_checkpoint_is_one_line_and_no_restart(experiment: Path, tmp_path: Path) -> None:
    broken = tmp_path / "00000003-abcdef01"
    broken.mkdir()
    manifest = {"files": {"rank_0.pt": {"size": 3, "sha256": "0" * 64}}, "progress": {"batches": 3}}
    (broken / "manifest.json").write_text(json.dumps(manifest))

    code, err = ds_train(
        experiment / "c.yaml", tmp_path / "run", "--latest-checkpoint", str(broken), "--config", "max_restarts=3"
    )

    assert code == 2
    assert f"ds-train: Checkpoint {broken} is damaged: rank_0.pt: missing" in err
    assert "Traceback" not in err
    assert "started again" not in err


def test_test_mode_trains_and_validates_one_batch(experiment: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    code, err = ds_train(experiment / "c.yaml", run, "--test", "--slots", "2")

    assert code == 0, err
    assert [line["at"] for line in reported(tmp_path / "run", "training")] == [1]
    assert [line["at"] for line in reported(tmp_path / "run", "validation")] == [1]


@pytest.mark.parametrize(
    ("entrypoint", "message"),
    [
        ("modeldef:LineTrial", "entrypoint: no module named 'modeldef' in "),
        ("model_def:LinTrial", "entrypoint: 'model_def' has no 'LinTrial' (did you mean 'LineTrial'?)"),
        ("model_def:NotATrial", "entrypoint: 'NotATrial' is not a trial class: it must derive from PyTorchTrial or"),
        ("python3 -m modeldef", "entrypoint: no module named 'modeldef' in "),
    ],
)
def test_an_entrypoint_that_is_not_there_is_one_line(
    entrypoint: str, message: str, experiment: Path, tmp_path: Path
) -> None:
    code, err = ds_train(experiment / "c.yaml", tmp_path / "run", "--config", f"entrypoint={entrypoint}")

    assert code == 2
    assert message in err
    assert "Traceback" not in err


def test_end_of_a_run_names_the_best_checkpoint_and_what_to_do_next(whole: Path) -> None:
    lines = list(end_of_run(whole))
    values = {line["at"]: line["validation_loss"] for line in reported(whole, "validation")}
    best = min(values, key=lambda at: values[at])
    assert lines[0].startswith("finished: 12 batches; metrics: ")
    assert next(end_of_run(whole, 61)).startswith("finished: 12 batches in 0:01:01; metrics: ")
    assert lines[1] == f"best: validation_loss {values[best]:.6g} at {best} batches"
    assert "checkpoints/000000" in lines[2] and "weights: ds-train runs export" in lines[2]
    assert lines[3].startswith("curves: tensorboard --logdir ")


def test_end_of_a_run_that_diverged_offers_no_weights(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    update_record(tmp_path / "run", diverged_at=13)
    assert "checkpoint" in " ".join(end_of_run(tmp_path / "run"))  # those from before are sound
    update_record(tmp_path / "run", diverged_at=1)
    lines = list(end_of_run(tmp_path / "run"))
    assert lines[0].startswith("finished, but training diverged at batch 1 and never recovered: 12 batches; metrics: ")
    assert lines[1].endswith("was saved after that: its weights are of no use")
    assert not any("export" in line or line.startswith("best") for line in lines)


def test_newest_run_is_resumed(experiment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(experiment)
    for number in (1, 2, 10):
        open_run(experiment / f"runs/line-{number}", "line", 3)
    open_run(experiment / "runs/linear-11", "linear", 3)
    (experiment / "runs/line-12").mkdir()
    options = parser().parse_args(["c.yaml", "--resume"])
    assert given_directory(options, "line") == Path("runs/line-10")
    with pytest.raises(ConfigError, match="there is no run of 'other'"):
        given_directory(options, "other")
    with pytest.raises(ConfigError, match="leave it out beside --run-dir"):
        given_directory(parser().parse_args(["c.yaml", "--resume", "--run-dir", "x"]), "line")


def test_start_that_cannot_be_run_leaves_no_directory(experiment: Path) -> None:
    command = [forked_python(), "-m", "trial_runtime.train", "c.yaml", "--config", "entrypoint=model_def:Nothing"]
    done = subprocess.run(command, cwd=experiment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 2 and "has no 'Nothing'" in done.stderr
    assert not list((experiment / "runs").glob("*/"))


def test_start_that_fails_does_not_offer_to_continue(experiment: Path) -> None:
    (experiment / "model_def.py").write_text(TRIAL.replace('context.get_hparam("lr")', "1 / 0"))
    command = [forked_python(), "-m", "trial_runtime.train", "c.yaml"]
    done = subprocess.run(command, cwd=experiment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1
    assert "nothing was trained" in done.stderr and "continue with" not in done.stderr
    assert not list((experiment / "runs").glob("*/"))
    frames = [line for line in done.stderr.splitlines() if line.lstrip().startswith("File ")]
    assert len(frames) == 1 and "model_def.py" in frames[0]


def validate(experiment: Path, checkpoint: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [forked_python(), "-m", "trial_runtime.train", str(experiment / "c.yaml"), "--validate", str(checkpoint)]
    return subprocess.run([*command, *options], cwd=experiment, capture_output=True, text=True, timeout=200)


def test_checkpoint_is_validated_without_a_trace(experiment: Path, whole: Path) -> None:
    done = validate(experiment, whole, "--format", "json", "--config", "searcher.max_length=null")
    assert done.returncode == 0, done.stderr
    last = reported(whole, "validation")[-1]
    assert json.loads(done.stdout) == {
        "checkpoint": str(whole),
        "batches": 12,
        "metrics": {"validation_loss": last["validation_loss"]},
    }
    assert not (experiment / "runs").exists()
    (named,) = re.findall(r"run directory (\S+),", done.stderr)
    assert not Path(named).exists()


def test_validation_that_fails_has_the_exit_code_of_the_trial(experiment: Path, whole: Path) -> None:
    code = (experiment / "model_def.py").read_text()
    (experiment / "model_def.py").write_text(code.replace('{"validation_loss": self.loss(batch)}', "1 / 0"))
    done = validate(experiment, whole)
    assert (done.returncode, done.stdout) == (1, "")
    assert "ZeroDivisionError" in done.stderr and "continue with" not in done.stderr


@pytest.mark.parametrize("option", ["--resume", "--run-dir=x", "--latest-checkpoint=x"])
def test_validation_takes_one_checkpoint(option: str, experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(experiment / "c.yaml"), "--validate", "x", option]) == 2
    assert "--validate: names the checkpoint; leave --run-dir, --resume and --latest" in capsys.readouterr().err


def test_metric_that_is_not_reported_is_one_message(experiment: Path, tmp_path: Path) -> None:
    change = "--config=searcher.metric=validation_lost"
    code, err = ds_train(experiment / "c.yaml", tmp_path / "run", change, "--test", "--config=checkpoint_policy=best")
    assert code == 2
    assert "validation metrics are ['validation_loss'] (did you mean 'validation_loss'?)." in err
    assert "Traceback" not in err and "continue with" not in err
