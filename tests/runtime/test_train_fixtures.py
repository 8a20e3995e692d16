"""Every experiment config of every fixture runs as it is, originals and conversions alike."""

import json
import os
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from forked_python import forked_python
from ports import free_port

pytestmark = pytest.mark.skipif(find_spec("deepspeed") is None, reason="needs the extra runtime")

FIXTURES = Path(__file__).parents[2] / "fixtures"
CONFIGS = sorted(FIXTURES.glob("*/*/*.yaml"))
ORIGINAL = [path for path in CONFIGS if path.parent.name == "before"]
CONVERTED = [path for path in CONFIGS if path.parent.name == "after"]
PICKS = ["learning_rate=0.5", "n_filters1=4", "n_filters2=4", "dropout1=0.5"]


def name_of(config: Path) -> str:
    return str(config.relative_to(FIXTURES))


def options_for(config: Path, run: Path) -> list[str]:
    options = ["--test", "--run-dir", str(run)]
    if config.stem == "adaptive":
        options += ["--config", "searcher.name=single", *(word for pick in PICKS for word in ("--hparam", pick))]
    return options


def reported(run: Path) -> list[dict[str, Any]]:
    """What the trial reported; not how fast it was."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    named = ("group", "steps_completed", "metrics", "batch_metrics")
    return [{name: line[name] for name in named if name in line} for line in lines]


def check(run: Path, slots: int) -> None:
    assert [line["group"] for line in reported(run)] == ["training", "validation"]
    assert (run / "checkpoints" / "latest").is_file()
    assert len(list((run / "log").iterdir())) == slots


def launch(command: list[str], cwd: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [forked_python(), *command],
        cwd=cwd,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def train_on_two_nodes(arguments: list[str], cwd: Path) -> None:
    """Two torchrun agents on this machine, which find each other as those of two machines do."""
    torchrun = ["-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d"]
    torchrun += [f"--rdzv-endpoint=localhost:{free_port()}", "-m", "trial_runtime.train", *arguments]
    children = [launch(torchrun, cwd), launch(torchrun, cwd)]
    outs = [child.communicate(timeout=200)[0] for child in children]
    assert [child.returncode for child in children] == [0, 0], "\n\n".join(outs)


def run_once(config: Path, run: Path, *options: str) -> None:
    child = launch(["-m", "trial_runtime.train", str(config), *options_for(config, run), *options], run.parent)
    out, _ = child.communicate(timeout=200)
    assert child.returncode == 0, out


@pytest.mark.parametrize("config", ORIGINAL, ids=name_of)
def test_each_original_config_runs(config: Path, tmp_path: Path) -> None:
    run_once(config, tmp_path / "run")

    check(tmp_path / "run", 2 if config.stem == "distributed" else 1)


@pytest.mark.parametrize(
    ("config", "slots"), [pytest.param(path, 1 + n % 2, id=name_of(path)) for n, path in enumerate(CONVERTED)]
)
def test_each_converted_config_runs(config: Path, slots: int, tmp_path: Path) -> None:
    run_once(config, tmp_path / "run", "--slots", str(slots))

    check(tmp_path / "run", slots)


def test_a_converted_config_runs_on_two_nodes(tmp_path: Path) -> None:
    config = CONVERTED[0]
    train_on_two_nodes([str(config), *options_for(config, tmp_path / "run")], tmp_path)

    check(tmp_path / "run", 2)


def test_two_nodes_train_as_two_slots_of_one(tmp_path: Path) -> None:
    config = FIXTURES / "mnist_legacy" / "before" / "const.yaml"
    options = [
        str(config),
        "--config",
        "reproducibility.experiment_seed=1",
        "--config",
        "searcher.max_length.batches=12",
    ]

    train_on_two_nodes([*options, "--run-dir", "nodes"], tmp_path)
    child = launch(["-m", "trial_runtime.train", *options, "--run-dir", "slots", "--slots", "2"], tmp_path)
    out, _ = child.communicate(timeout=200)
    assert child.returncode == 0, out

    assert reported(tmp_path / "nodes") == reported(tmp_path / "slots") != []
