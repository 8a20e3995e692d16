"""Every experiment config of every fixture runs as it is, originals and conversions alike."""

import json
import os
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(find_spec("deepspeed") is None, reason="needs pip install 'ds-migrate[runtime]'")

FIXTURES = Path(__file__).parents[2] / "fixtures"
CONFIGS = sorted(FIXTURES.glob("*/*/*.yaml"))
PICKS = ["learning_rate=0.5", "n_filters1=4", "n_filters2=4", "dropout1=0.5"]


def launch(command: list[str], cwd: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=cwd,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


@pytest.mark.parametrize("config", CONFIGS, ids=[str(path.relative_to(FIXTURES)) for path in CONFIGS])
def test_each_config_of_each_fixture_runs(config: Path, tmp_path: Path) -> None:
    options = ["--test", "--run-dir", str(tmp_path / "run")]
    if config.stem == "adaptive":
        options += ["--config", "searcher.name=single", *(word for pick in PICKS for word in ("--hparam", pick))]

    child = launch(["-m", "trial_runtime.train", str(config), *options], tmp_path)
    out, _ = child.communicate(timeout=200)

    assert child.returncode == 0, out
    assert f"finished; metrics: {Path('run/metrics.jsonl')}; curves: tensorboard --logdir run\n" in out
    groups = [json.loads(line)["group"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert groups == ["training", "validation"]
    assert (tmp_path / "run" / "checkpoints" / "latest").is_file()


def test_two_nodes_train_as_two_slots_of_one(tmp_path: Path) -> None:
    config = FIXTURES / "mnist_legacy" / "before" / "const.yaml"
    options = [
        str(config),
        "--config",
        "reproducibility.experiment_seed=1",
        "--config",
        "searcher.max_length.batches=12",
    ]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torchrun = ["-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d"]
    torchrun += [f"--rdzv-endpoint=localhost:{port}", "-m", "trial_runtime.train", *options, "--run-dir", "nodes"]

    children = [launch(torchrun, tmp_path), launch(torchrun, tmp_path)]
    outs = [child.communicate(timeout=200)[0] for child in children]
    assert [child.returncode for child in children] == [0, 0], outs
    child = launch(["-m", "trial_runtime.train", *options, "--run-dir", "slots", "--slots", "2"], tmp_path)
    out, _ = child.communicate(timeout=200)
    assert child.returncode == 0, out

    assert (tmp_path / "nodes" / "metrics.jsonl").read_text() == (tmp_path / "slots" / "metrics.jsonl").read_text()
