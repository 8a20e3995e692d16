"""The ways to start a script: each gives the same numbers, without MPI and without a compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import toys
from forked_python import forked_python
from ports import free_port
from trial_runtime.pytorch import deepspeed as det_ds

SCRIPT = """
import argparse, os, pathlib, sys

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank")  # the deepspeed launcher's
parser.parse_known_args()
import toys
from trial_runtime.pytorch import deepspeed as det_ds
from trial_runtime import pytorch

for number, kind in enumerate((toys.SimplePT, toys.SimpleDS, toys.SimplePT)):  # several sessions in one process
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    hparams = {"stage": 1, "global_batch_size": 4 * ranks}
    outcome = toys.fit(kind, hparams, pathlib.Path(sys.argv[1]) / str(number), max_length=pytorch.Batch(3))
    if outcome.validation:
        print("RESULT", ranks, float(outcome.validation[-1][1]["validation_loss"]), flush=True)
"""

PYTHONS = ["forked", pytest.param("new", marks=pytest.mark.slow)]
"""Of the ranks, which import what they need under their launcher then; a launcher is forked."""
LAUNCHERS = {
    "python": ["-u"],
    "torchrun": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"],
    "deepspeed": ["-m", "deepspeed.launcher.runner", "--num_accelerators=2"],
}


def results(launcher: str, folder: Path, python: str) -> list[list[str]]:
    script, ranks = folder / "script.py", forked_python() if python == "forked" else sys.executable
    script.write_text(f"#!{ranks} -u\n{SCRIPT}")
    script.chmod(0o755)
    environment = {
        name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    }
    environment |= {
        "PYTHONPATH": os.pathsep.join([str(Path(toys.__file__).parent), *filter(None, sys.path)]),
        "PATH": "/nonexistent",  # no compiler, no MPI
        "OMP_NUM_THREADS": "1",
        "PYTHON_EXEC": ranks,  # read by torchrun; deepspeed has an option for it
    }
    options = list(LAUNCHERS[launcher])
    if launcher == "deepspeed":
        options += [f"--master_port={free_port()}", *(["--no_python"] if python == "new" else [])]
    command = [ranks if launcher == "python" else forked_python(), *options, str(script), str(folder)]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return [line.split("RESULT")[1].split() for line in done.stdout.splitlines() if "RESULT" in line]


@pytest.mark.parametrize("python", PYTHONS)
def test_plain_python(python: str, tmp_path: Path) -> None:
    found = results("python", tmp_path, python)
    assert [ranks for ranks, _ in found] == ["1", "1", "1"]
    assert len({loss for _, loss in found}) == 1


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed"])
def test_two_ranks(launcher: str, python: str, tmp_path: Path) -> None:
    found = results(launcher, tmp_path, python)
    assert [ranks for ranks, _ in found] == ["2", "2", "2"]
    assert len({loss for _, loss in found}) == 1


def test_a_run_leaves_the_environment_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE"):
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    with det_ds.init(run_dir=tmp_path):
        assert (os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["LOCAL_RANK"]) == ("0", "1", "0")
    assert dict(os.environ) == before


def test_a_run_that_fails_leaves_the_environment_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(KeyError), det_ds.init(run_dir=tmp_path):
        raise KeyError
    assert "RANK" not in os.environ


def test_what_a_launcher_set_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    with det_ds.init(run_dir=tmp_path):
        pass
    assert os.environ["LOCAL_RANK"] == "0"
