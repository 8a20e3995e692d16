"""Core API programs under ds-train: written for Determined, started as they are, on one and two ranks, and resumed."""

from __future__ import annotations

import json
import signal
import subprocess
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from forked_python import forked_python
from line_trial import LINE_TRIAL, user_environment

pytestmark = pytest.mark.timeout(240)

CONFIG = """
name: program
entrypoint: {entrypoint}
hyperparameters: {{lr: 0.1}}
searcher: {{name: single, metric: loss, smaller_is_better: true, max_length: {{batches: 6}}}}
resources: {{slots_per_trial: {slots}}}
reproducibility: {{experiment_seed: 7}}
"""

# The calls, their order and their idioms are those of Determined's tutorials for the Core API.
PROGRAM = """
import json
import logging
import pathlib
import sys
import time

import determined as det
import torch

def save(core_context, weight, steps, trial_id):
    with core_context.checkpoint.store_path({"steps_completed": steps}) as (path, uuid):
        torch.save(weight, path / "weight.pt")
        with (path / "trial").open("w") as f:
            f.write(f"{steps},{trial_id}")
    return uuid

def load(core_context, latest, trial_id):
    with core_context.checkpoint.restore_path(latest) as path:
        weight = torch.load(path / "weight.pt")
        steps, ckpt_trial_id = map(int, (path / "trial").read_text().split(","))
    return (weight, steps) if ckpt_trial_id == trial_id else (weight, 0)

def main(core_context, latest, trial_id, hparams, slow):
    rank = core_context.distributed.rank
    weight, steps = torch.zeros(1), 0
    if latest is not None:
        weight, steps = load(core_context, latest, trial_id)
    last = steps
    for op in core_context.searcher.operations():
        while steps < op.length:
            weight = weight + hparams["lr"] * (rank + 1)
            weight = torch.tensor(core_context.distributed.allgather(weight.item())).mean()
            steps += 1
            if slow:
                time.sleep(0.05)
            if rank == 0:
                core_context.train.report_training_metrics(steps_completed=steps, metrics={"weight": weight.item()})
                op.report_progress(steps)
            if core_context.preempt.should_preempt():
                if rank == 0:
                    save(core_context, weight, steps, trial_id)
                return
        if rank == 0:
            core_context.train.report_validation_metrics(steps_completed=steps, metrics={"loss": 1 / weight.item()})
            save(core_context, weight, steps, trial_id)
            op.report_completed(1 / weight.item())
    print("trained", steps, "from", last)

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format=det.LOG_FORMAT)
    info = det.get_cluster_info()
    assert info is not None, "this example only runs on-cluster"
    distributed = None
    if len(info.slot_ids) > 1:
        if "early" in sys.argv:
            torch.distributed.init_process_group("gloo")
        distributed = det.core.DistributedContext.from_torch_distributed()
    with det.core.init(distributed=distributed) as core_context:
        if len(info.slot_ids) > 1 and "late" in sys.argv:
            core_context.distributed.allgather(None)
            torch.distributed.init_process_group("gloo")
        main(core_context, info.latest_checkpoint, info.trial.trial_id, info.trial.hparams, "slow" in sys.argv)
"""


class Program:
    """A folder with a config and a script, and ds-train started in it."""

    def __init__(self, folder: Path, entrypoint: str, slots: int = 1, script: str = PROGRAM) -> None:
        self.folder = folder
        (folder / "c.yaml").write_text(CONFIG.format(entrypoint=entrypoint, slots=slots))
        (folder / "train.py").write_text(textwrap.dedent(script))

    def start(self, *options: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [forked_python(), "-m", "trial_runtime.train", "c.yaml", "--run-dir", "run", *options],
            cwd=self.folder,
            env=user_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *options: str) -> tuple[int, str]:
        with self.start(*options) as process:
            output, _ = process.communicate(timeout=200)
        return process.returncode, output

    def status(self) -> str:
        return str(json.loads((self.folder / "run" / "run.json").read_text())["status"])

    def reports(self, group: str) -> list[tuple[int, dict[str, Any]]]:
        lines = (self.folder / "run" / "metrics.jsonl").read_text().splitlines()
        found = [json.loads(line) for line in lines]
        return [(line["steps_completed"], line["metrics"]) for line in found if line["group"] == group]


LAUNCHED = "python3 -m determined.launch.torch_distributed --"


@pytest.mark.parametrize(
    ("slots", "entrypoint"),
    [
        (1, "python3 train.py"),
        (2, "python3 train.py early"),
        (2, f"{LAUNCHED} python3 train.py late"),
        (2, "[python3, -m, determined.launch.torch_distributed, python3, train.py]"),
    ],
)
def test_a_program_trains_unchanged(slots: int, entrypoint: str, tmp_path: Path) -> None:
    program = Program(tmp_path, entrypoint, slots)
    code, output = program.run()
    assert code == 0, output
    mean = 0.1 * (1 + slots) / 2
    assert [(step, round(metrics["weight"], 5)) for step, metrics in program.reports("training")] == [
        (step, round(step * mean, 5)) for step in range(1, 7)
    ]
    ((steps, metrics),) = program.reports("validation")
    assert steps == 6 and metrics["loss"] == pytest.approx(1 / (6 * mean))
    (checkpoint,) = (tmp_path / "run" / "checkpoints").glob("0*")
    assert (checkpoint / "trial").read_text() == "6,1"
    assert program.status() == "completed"
    assert "progress: 100%" in output


@pytest.mark.parametrize("slots", [1, 2])
def test_a_program_that_is_stopped_saves_and_resumes(slots: int, tmp_path: Path) -> None:
    program = Program(tmp_path, "python3 train.py slow early", slots)
    longer = ("--config", "searcher.max_length.batches=400")
    with program.start(*longer) as process:
        metrics = tmp_path / "run" / "metrics.jsonl"
        deadline = time.monotonic() + 200
        while not (metrics.is_file() and metrics.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=200)
    assert process.returncode == 128 + signal.SIGTERM, output
    assert program.status() == "stopped"
    assert "continue with: ds-train c.yaml" in output
    last = program.reports("training")[-1][0]
    (checkpoint,) = (tmp_path / "run" / "checkpoints").glob("0*")
    assert (checkpoint / "trial").read_text() == f"{last},1"
    code, output = program.run("--config", f"searcher.max_length.batches={last + 3}")
    assert code == 0, output
    assert f"trained {last + 3} from {last}" in output
    steps = [step for step, _ in program.reports("training")]
    assert steps == list(range(1, last + 4))
    mean = 0.1 * (1 + slots) / 2
    assert program.reports("training")[-1][1]["weight"] == pytest.approx((last + 3) * mean, rel=1e-4)
    assert program.status() == "completed"


TRIAL = (
    """
import torch
from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext
"""
    + LINE_TRIAL
)
TRAINING = """
name: line
entrypoint: model_def:LineTrial
hyperparameters: {lr: 0.05, global_batch_size: 4}
searcher: {name: single, metric: val_loss, max_length: {batches: 6}}
min_validation_period: {batches: 2}
min_checkpoint_period: {batches: 2}
checkpoint_policy: all
reproducibility: {experiment_seed: 7}
"""
# What scripts for inference call, in both spellings that are met: a client's functions, and a Determined object.
INFERENCE = """
import os
import sys
import torch
from determined.experimental import Determined, client
from determined.pytorch import load_trial_from_checkpoint_path

client.login(master=os.getenv("DET_MASTER", "localhost"))
best = client.get_experiment(os.getenv("EXPERIMENT_ID", "1")).top_checkpoint()
trial = Determined().get_trial(1).top_checkpoint(sort_by="val_loss", smaller_is_better=True).load()
path = best.download("best")
again = load_trial_from_checkpoint_path(path)
inputs = torch.ones(1, 2)
assert torch.equal(trial.model(inputs), again.model(inputs))
metrics = best.training.validation_metrics["avgMetrics"]
print("RESULT", best.uuid, best.metadata["steps_completed"], metrics["val_loss"], trial.model(inputs).item())
"""


def test_an_inference_script_loads_the_best_checkpoint_unchanged(tmp_path: Path) -> None:
    (tmp_path / "model_def.py").write_text(textwrap.dedent(TRIAL))
    (tmp_path / "train.yaml").write_text(TRAINING)
    (tmp_path / "infer.py").write_text(textwrap.dedent(INFERENCE))
    (tmp_path / "infer.yaml").write_text("name: infer\nentrypoint: python3 infer.py\n")
    outputs = []
    for config in ("train.yaml", "infer.yaml", "infer.yaml"):  # the second start finds the copy of the first
        done = subprocess.run(
            [forked_python(), "-m", "trial_runtime.train", config],
            cwd=tmp_path, env=user_environment(), capture_output=True, text=True, timeout=200,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout + done.stderr)
    reports = [json.loads(line) for line in (tmp_path / "runs/line-1/metrics.jsonl").read_text().splitlines()]
    values = {one["steps_completed"]: one["metrics"]["val_loss"] for one in reports if one["group"] == "validation"}
    best = min(values, key=values.__getitem__)
    results = [next(line for line in output.splitlines() if "RESULT" in line) for output in outputs[1:]]
    words = results[0].split("RESULT ")[1].split()
    assert words[0].startswith(f"{best:08d}-")
    assert (int(words[1]), float(words[2])) == (best, values[best])
    assert results[0].split("RESULT")[1] == results[1].split("RESULT")[1]
