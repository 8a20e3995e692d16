"""A program of the Core API in a whole search, undisturbed and with each of its trials killed at several moments."""

from __future__ import annotations

import json
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from forked_python import forked_python

pytestmark = pytest.mark.skipif(find_spec("deepspeed") is None, reason="needs the extra runtime")

PROGRAM = """
import os, signal
from pathlib import Path
import determined as det
from determined import core

info = det.get_cluster_info()
lr = info.trial.hparams["lr"]
marks = Path(info.run.directory)


def moment(name):
    mark = marks / f"killed-{name}"
    if os.environ.get("KILL") and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


with core.init() as context:
    batches = 0
    if info.latest_checkpoint is not None:
        with context.checkpoint.restore_path(info.latest_checkpoint) as path:
            batches = int((path / "batches").read_text())
    moment("start")
    for operation in context.searcher.operations():
        while batches < operation.length:
            batches += 1
            context.train.report_training_metrics(batches, {"loss": lr / batches})
        moment("trained")
        with context.checkpoint.store_path({"steps_completed": batches}) as (path, uuid):
            (path / "batches").write_text(str(batches))
        moment("saved")
        loss = (lr - 0.3) ** 2 + 1 / batches
        context.train.report_validation_metrics(batches, {"validation_loss": loss})
        moment("reported")
        operation.report_completed(loss)
"""
CONFIG = """
name: program
entrypoint: python3 train.py
hyperparameters: {lr: {type: double, minval: 0.01, maxval: 0.5}}
searcher:
  {name: async_halving, metric: validation_loss, max_length: {batches: 8}, max_trials: 4, num_rungs: 2, divisor: 2}
reproducibility: {experiment_seed: 3}
max_restarts: 4
"""
MOMENTS = ("start", "trained", "saved", "reported")


def search(folder: Path, *, kills: bool = False) -> tuple[list[Any], dict[str, list[int]]]:
    """Return the ledger, and the steps that each trial reported for training."""
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    kill = "environment: {environment_variables: [KILL=1]}\n"
    (folder / "c.yaml").write_text(CONFIG + kill * kills)
    done = subprocess.run(
        [forked_python(), "-m", "trial_runtime.train", "c.yaml", "--slots", "1"], cwd=folder, capture_output=True,
        text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    run = folder / "runs/program-1"
    ledger = [json.loads(line) for line in (run / "search.jsonl").read_text().splitlines()]
    killed = sorted(mark.name.removeprefix("killed-") for mark in run.glob("trials/*/killed-*"))
    assert killed == (sorted(MOMENTS * 4) if kills else []), "a trial was not killed"
    steps = {}
    for trial in sorted(run.glob("trials/*/metrics.jsonl")):
        lines = [json.loads(line) for line in trial.read_text().splitlines()]
        steps[trial.parent.name] = [line["steps_completed"] for line in lines if line["group"] == "training"]
    return ledger, steps


def test_a_program_follows_the_operations_of_a_search(tmp_path: Path) -> None:
    _, steps = search(tmp_path / "whole")
    assert len(steps) == 4
    assert {len(each) for each in steps.values()} == {4, 8}, "some were promoted, others were not"
    assert all(each == list(range(1, len(each) + 1)) for each in steps.values()), "a promoted trial resumes"


@pytest.mark.slow
def test_trials_killed_at_any_moment_change_nothing(tmp_path: Path) -> None:
    """Each trial is killed at each moment, and started again from what it had saved."""
    assert search(tmp_path / "killed", kills=True) == search(tmp_path / "whole")
