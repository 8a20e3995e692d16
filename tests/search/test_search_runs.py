"""Searches that ds-train runs for real: promotions bit for bit, kills, stops, and what a user reads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
from forked_python import forked_python
from trial_runtime.train.cli import main
from trial_runtime.train.search.assignment import Assignment

pytestmark = pytest.mark.skipif(find_spec("deepspeed") is None, reason="needs the extra runtime")

TRIAL = """
import torch
from determined import InvalidHP
from determined.pytorch import DataLoader, LRScheduler, PyTorchTrial


class LineTrial(PyTorchTrial):
    def __init__(self, context):
        self.context = context
        if context.get_hparam("lr") > 0.9:
            raise InvalidHP("too large")
        layers = torch.nn.Linear(2, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1)
        self.model = context.wrap_model(torch.nn.Sequential(*layers))
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters(), lr=context.get_hparam("lr")))
        length = context.get_experiment_config()["searcher"]["max_length"]["batches"]
        schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1 - step / (2 * length))
        context.wrap_lr_scheduler(schedule, LRScheduler.StepMode.STEP_EVERY_BATCH)

    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = ((self.model(batch[0]) - batch[1]) ** 2).mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch, batch_idx):
        return {"validation_loss": ((self.model(batch[0]) - batch[1]) ** 2).mean()}

    def build_training_data_loader(self):
        x = torch.linspace(0, 1, 48).reshape(24, 2)
        return DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4, shuffle=True)

    build_validation_data_loader = build_training_data_loader
"""
CONFIG = """
name: line
entrypoint: model_def:LineTrial
hyperparameters: {global_batch_size: 4, lr: {type: double, minval: 0.01, maxval: 0.5}}
searcher:
  {name: async_halving, metric: validation_loss, max_length: {batches: 8}, max_trials: 3, num_rungs: 2, divisor: 2}
reproducibility: {experiment_seed: 3}
max_restarts: 0
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.executable", forked_python())
    return tmp_path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a search that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    write_project(folder)
    done = train("--slots", "1", folder=folder)
    assert done.returncode == 0, done.stderr
    return folder / "runs/line-1"


def write_project(folder: Path) -> None:
    (folder / "model_def.py").write_text(TRIAL)
    (folder / "c.yaml").write_text(CONFIG)


def train(*options: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [forked_python(), "-m", "trial_runtime.train", "c.yaml", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200)


def validations(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["metrics"] for line in lines if line["group"] == "validation"]


def final_states(run: Path) -> list[dict[str, Any]]:
    """Return what each rank saved last: weights, optimizer, generators."""
    import torch

    newest = max(path for path in (run / "checkpoints").iterdir() if path.is_dir())
    return [torch.load(file, weights_only=False) for file in sorted(newest.glob("rank_*.pt"))]


def is_same(one: Any, other: Any) -> bool:
    import torch

    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict) and "streams" in one:  # of loader workers; "start" is where the process began
        one, other = {**one, "start": 0}, {**other, "start": 0}
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    if type(one).__module__ == "numpy":
        return bool((one == other).all())
    return bool(one == other)


@pytest.mark.parametrize("slots", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_promoted_trial_is_bitwise_the_one_that_was_never_paused(project: Path, slots: int) -> None:
    size = ("--config", f"resources.slots_per_trial={slots}")
    for order, length in enumerate((2, 4, 6), 1):
        Assignment(1, 1, "", 11, {"global_batch_size": 4, "lr": 0.1}, order, {"batches": length}).write(
            project / "0001.json"
        )
        paused = train("--run-dir", "paused", "--assignment", "0001.json", *size)
        assert paused.returncode == 0, paused.stderr
    Assignment(1, 1, "", 11, {"global_batch_size": 4, "lr": 0.1}, 1, {"batches": 6}).write(project / "0001.json")
    period = ("--config", "min_validation_period.batches=2")
    whole = train("--run-dir", "whole", "--assignment", "0001.json", *size, *period)
    assert whole.returncode == 0, whole.stderr
    assert [line["batches"] for line in validations(project / "paused")] == [2, 4, 6]
    assert validations(project / "paused") == validations(project / "whole")
    assert len(final_states(project / "paused")) == slots
    assert is_same(final_states(project / "paused"), final_states(project / "whole"))


def test_search_ends_with_the_best_trial_and_how_to_continue(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["c.yaml", "--slots", "1"]) == 0
    said = capfd.readouterr().err
    assert "async_halving (promotion): 3 trials, up to 8 batches each, judged by validation_loss" in said
    assert "best: trial" in said and "train it from the start: ds-train runs/line-1/config.yaml" in said
    assert " --latest-checkpoint runs/line-1/trials/000" in said and said.endswith("max_length.batches=16\n")
    search = project / "runs/line-1"
    assert (search / "table.csv").read_text().startswith("trial,validation_loss,batches,seed,global_batch_size,lr\n")
    assert json.loads((search / "search.json").read_text())["status"] == "completed"
    assert [validations(search / f"trials/000{trial}")[0]["batches"] for trial in (1, 2, 3)] == [4, 4, 4]
    assert max(validations(search / f"trials/000{trial}")[-1]["batches"] for trial in (1, 2, 3)) == 8
    assert "8 batches</text>" in (search / "search.html").read_text()
    if find_spec("optuna") is not None:
        at_the_end = [validations(search / f"trials/000{trial}")[-1]["batches"] == 8 for trial in (1, 2, 3)]
        assert (search / "optuna.log").read_text().count('"state":1,"values"') == sum(at_the_end)  # complete


def test_search_over_a_time_metric_stops_trials_while_they_run(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    changes = ("searcher.max_length=null", "searcher.max_time=8", "searcher.time_metric=batches")
    # The trial's own schedule reads max_length, which such configs lack.
    trial = TRIAL.replace('["searcher"]["max_length"]["batches"]', '["searcher"]["max_time"]')
    trial = trial.replace(
        "layers =", 'assert context.get_hparam("service")["api_key"] == "KE" + "Y-1"\n        layers ='
    )
    (project / "model_def.py").write_text(trial)
    (project / "c.yaml").write_text(
        CONFIG.replace("{global_batch_size: 4,", "{global_batch_size: 4, service: {api_key: KEY-1},")
        + "environment: {environment_variables: [A=KEY-2]}\ndata: {password: KEY-3}\n"
    )
    words = [word for change in changes for word in ("--config", change)]
    assert main(["c.yaml", "--slots", "1", *words, "--config", "min_validation_period.batches=2"]) == 0
    assert "async_halving (time): 3 trials, up to 8 batches each" in capfd.readouterr().err
    assert json.loads((project / "runs/line-1/search.json").read_text())["status"] == "completed"
    assert validations(project / "runs/line-1/trials/0001")[-1]["batches"] == 8
    files = [path for path in (project / "runs").rglob("*") if path.is_file()]
    assert files and not [path for path in files if b"KEY-" in path.read_bytes()]


def wait_until_left(folder: Path) -> None:
    """Wait for the ranks of a killed search: while one still leaves its trial, the next trial is trained before it.

    A rank that was just started has not claimed its trial yet, but it is in the folder.
    """
    deadline = time.monotonic() + 120
    while left := [
        p.pid for p in psutil.process_iter(["cwd"]) if p.info["cwd"] == str(folder) and p.pid != os.getpid()
    ]:
        assert time.monotonic() < deadline, f"processes {left} of a killed search still run"
        time.sleep(0.05)


@pytest.mark.slow
def test_killed_search_decides_the_same_when_started_again(project: Path, whole: Path) -> None:
    for number, reached in enumerate(("trials/0001.log", "trials/0001/metrics.jsonl", "trials/0003.log"), 1):
        search = project / f"runs/line-{number}"
        command = [forked_python(), "-m", "trial_runtime.train", "c.yaml", "--slots", "1"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as first:
            deadline = time.monotonic() + 200
            while not (search / reached).exists():
                assert time.monotonic() < deadline, f"the search did not reach {reached}"
                time.sleep(0.05)
            first.send_signal(signal.SIGKILL)
        wait_until_left(project)
        again = train("--slots", "1", "--run-dir", str(search))
        assert again.returncode == 0, again.stderr
        assert (search / "search.jsonl").read_text() == (whole / "search.jsonl").read_text(), reached


def test_stopped_search_names_the_command_that_continues_it(project: Path) -> None:
    command = [forked_python(), "-m", "trial_runtime.train", "c.yaml", "--slots", "1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as search:
        console = project / "runs/line-1/trials/0001.log"
        deadline = time.monotonic() + 200
        while not console.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        search.send_signal(signal.SIGINT)
        said = search.communicate(timeout=200)[1]
    assert search.returncode == 128 + signal.SIGINT, said
    assert "stopped by SIGINT; continue with: ds-train c.yaml --run-dir runs/line-1" in said
    assert json.loads((project / "runs/line-1/search.json").read_text())["status"] == "stopped"


@pytest.mark.parametrize(
    "change, message",
    [
        ("searcher.name=custom", "searcher.name: 'custom' is not run here: its code drives the cluster's master"),
        ("searcher.max_trials=null", "searcher.max_trials: is missing"),
        ("searcher.metric=null", "searcher.metric: is missing"),
        ("searcher.max_length=null", "searcher.max_length: is missing"),
        ("searcher.name=grid", "hyperparameters.lr.count: None: a grid search needs the number of points"),
        ("searcher.divisor=1", "searcher.divisor: 1 is not allowed: write a number above 1"),
        ("searcher.bracket_rungs=3", "searcher.bracket_rungs: 3 is not allowed"),
        ("reproducibility.experiment_seed=-1", "reproducibility.experiment_seed: -1 is not allowed"),
        ("resources.slots_per_trial=3", "resources.slots_per_trial: a trial takes 3 slots, and there are 2"),
    ],
)
def test_wrong_search_is_one_error_before_anything_is_made(
    project: Path, capsys: pytest.CaptureFixture[str], change: str, message: str
) -> None:
    assert main(["c.yaml", "--slots", "2", "--config", change]) == 2
    assert message in capsys.readouterr().err
    assert not (project / "runs").exists()


def test_dry_run_shows_brackets_and_where_trials_end(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = ("searcher.name=adaptive_asha", "searcher.max_trials=16", "searcher.max_length.batches=100")
    words = [word for change in changes for word in ("--config", change)]
    assert main(["c.yaml", "--dry-run", "--asha", "stop_once", *words, "--config", "searcher.divisor=4"]) == 0
    said = capsys.readouterr().err
    assert "adaptive_asha (stop_once): 16 trials, up to 100 batches each" in said
    assert "bracket 1: 12 trials, 8 at once: 9 of 6, 2 of 25, 1 of 100" in said
    assert not (project / "runs").exists()


def test_changed_search_is_not_continued(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "runs/x").mkdir(parents=True)
    (project / "runs/x/search.json").write_text('{"number": 1, "seed": 3, "digest": "other", "status": "stopped"}')
    assert main(["c.yaml", "--run-dir", "runs/x", "--slots", "1"]) == 2
    assert "its search has another searcher or other hyperparameters" in capsys.readouterr().err


def test_trials_end_with_the_search_that_was_killed(project: Path) -> None:
    command = [forked_python(), "-m", "trial_runtime.train", "c.yaml", "--slots", "1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as search:
        console = project / "runs/line-1/trials/0001.log"
        deadline = time.monotonic() + 200
        while not (console.exists() and console.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.05)
        search.kill()
    claim = project / "runs/line-1/trials/0001.claim"
    deadline = time.monotonic() + 200
    while _is_held(claim) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _is_held(claim)


def _is_held(path: Path) -> bool:
    import fcntl

    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("kill", [False, True])
def test_two_commands_started_at_once_run_each_trial_once(kill: bool, project: Path, whole: Path) -> None:
    command = [forked_python(), "-m", "trial_runtime.train", "c.yaml", "--slots", "1", "--run-dir", "runs/shared"]
    trials = project / "runs/shared/trials"
    drivers = []
    try:
        for number in range(2):
            with (project / f"driver{number}.log").open("wb") as log:
                drivers.append(subprocess.Popen(command, stdout=log, stderr=log))
        deadline = time.monotonic() + 200
        while not (trials / "0002.log").exists():  # each has one
            assert time.monotonic() < deadline
            time.sleep(0.05)
        if kill:
            drivers[0].kill()
        codes = [driver.wait(200) for driver in drivers]
    finally:
        for driver in drivers:
            driver.kill()
    said = [(project / f"driver{number}.log").read_text() for number in range(2)]
    assert codes == [-signal.SIGKILL if kill else 0, 0], said
    assert sorted(path.name for path in trials.glob("*.outcome")) == ["0001.outcome", "0002.outcome", "0003.outcome"]
    for trial in ("0001", "0002", "0003"):
        lines = [json.loads(line) for line in (trials / trial / "metrics.jsonl").read_text().splitlines()]
        steps = [line["steps_completed"] for line in lines if line["group"] == "validation"]
        assert steps == sorted(set(steps)), f"trial {trial} was run twice"
        assert (
            Assignment.read(trials / f"{trial}.json").hparams == Assignment.read(whole / f"trials/{trial}.json").hparams
        )
    events = [json.loads(line) for line in (project / "runs/shared/search.jsonl").read_text().splitlines()]
    assert events, "an empty ledger"
    assert not list((project / "runs").glob(".*.opening"))
