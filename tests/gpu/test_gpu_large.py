"""A model that outgrows the optimizer's memory trains converted, with ZeRO stage 3 and the optimizer on the CPU."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import language_model
import pytest
from forked_python import forked_python

TINY = {"vocabulary": 64, "width": 32, "layers": 2, "heads": 2, "length": 16, "batches": 12}
BILLION = {"vocabulary": 32000, "width": 2048, "layers": 18, "heads": 16, "length": 256, "batches": 12}

# The user's own AdamW runs on the CPU: no op is compiled.
OFFLOAD = {
    "zero_optimization.stage": 3,
    "zero_optimization.offload_optimizer.device": "cpu",
    "zero_force_ds_cpu_optimizer": "false",
}


def run(*words: str, folder: Path) -> str:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def trained(folder: Path, size: dict[str, int], memory: str, python: str) -> list[dict[str, float]]:
    """Convert and train; the metrics of each batch."""
    language_model.write(folder, **size)
    run(sys.executable, "-m", "ds_migrate", "--write", ".", folder=folder)
    assert "DeepSpeedTrial" in (folder / "model_def.py").read_text()
    settings = [
        word
        for name, value in OFFLOAD.items()
        for word in ("--config", f"hyperparameters.overwrite_deepspeed_args.{name}={value}")
    ]
    # The same process tells its peak memory at its end.
    (folder / "train.py").write_text(
        "import atexit, torch\n"
        f"atexit.register(lambda: torch.cuda.is_available() and open({memory!r}, 'w').write("
        "str(torch.cuda.max_memory_allocated())))\n" + (folder / "model_def.py").read_text()
    )
    (folder / "const.yaml").write_text((folder / "const.yaml").read_text().replace("model_def:", "train:"))
    run(python, "-m", "trial_runtime.train", "const.yaml", "--run-dir", "run", *settings, folder=folder)
    lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    return [line["metrics"] for line in lines if line["group"] == "training"]


def check(metrics: list[dict[str, float]], batches: int) -> None:
    losses = [metric["loss"] for metric in metrics]
    assert len(losses) == batches
    assert all(math.isfinite(loss) for loss in losses)
    assert losses[-1] < losses[0]


def test_a_small_language_model_trains_with_its_optimizer_offloaded(tmp_path: Path) -> None:
    check(trained(tmp_path, TINY, str(tmp_path / "memory"), forked_python()), TINY["batches"])


@pytest.mark.gpu
@pytest.mark.timeout(560)
def test_a_billion_parameters_train_with_their_optimizer_offloaded(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    began = time.monotonic()
    metrics = trained(tmp_path, BILLION, str(tmp_path / "memory"), sys.executable)
    check(metrics, BILLION["batches"])
    parameters = metrics[0]["parameters"]
    assert parameters > 1e9
    peak = int((tmp_path / "memory").read_text())
    record_property("parameters", int(parameters))
    record_property("peak_gpu_bytes", peak)
    record_property("seconds_in_all", round(time.monotonic() - began, 1))
    # Weights and gradients are on the GPU, the optimizer's two moments (8 bytes a parameter) are not.
    assert peak < 14 * parameters
