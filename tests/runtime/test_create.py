"""The Native API: a script that trains a trial class by experimental.create()."""

from __future__ import annotations

import json
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_python import forked_python
from line_trial import LINE_TRIAL, user_environment
from trial_runtime import experimental, pytorch
from trial_runtime.train.config.errors import ConfigError

SCRIPT = """
import sys
import torch
{imports}

{trial}
config = {{
    "description": "native",
    "hyperparameters": {{
        "global_batch_size": Constant(value=4), "lr": Constant(value=0.05), "width": Constant(value=3),
    }},
    "searcher": {{"name": "single", "metric": "val_loss", "max_length": {{"batches": 4}}}},
    "scheduling_unit": 2,
}}
if __name__ == "__main__":
    experimental.create(trial_def=LineTrial, config=config, local="--local" in sys.argv, test="--test" in sys.argv,
                        context_dir=".")
    print("AFTER", flush=True)
"""
OPTIMIZER = 'lr=context.get_hparam("lr")))\n'
TRIAL = LINE_TRIAL.replace(
    OPTIMIZER, OPTIMIZER + '        print("LR", context.get_hparam("lr"), context.get_hparam("width"), flush=True)\n'
)
DETERMINED = """
from determined import Constant, experimental
from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext
"""
RUNTIME = DETERMINED.replace("determined", "trial_runtime")


def start(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [forked_python(), *words], cwd=folder, env=user_environment(),
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip


def write(folder: Path, imports: str) -> None:
    (folder / "script.py").write_text(textwrap.dedent(SCRIPT.format(imports=imports, trial=TRIAL)))


def reports(folder: Path) -> list[tuple[str, int]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [(line["group"], line["steps_completed"]) for line in map(json.loads, lines)]


def test_a_script_trains_its_class_in_a_run_of_ds_train_and_resumes(tmp_path: Path) -> None:
    write(tmp_path, RUNTIME)
    done = start(tmp_path, "script.py")
    assert done.returncode == 0, done.stderr
    assert reports(tmp_path / "runs/script-1") == [("training", 2), ("training", 4), ("validation", 4)]
    printed = (done.stdout + done.stderr).splitlines()
    assert sum("LR 0.05 3" in line for line in printed) == 1
    assert sum("AFTER" in line for line in printed) == 1  # in the script, not in the process that trains


def test_a_script_of_determined_runs_under_ds_train_and_the_config_file_wins(tmp_path: Path) -> None:
    write(tmp_path, DETERMINED)
    (tmp_path / "c.yaml").write_text(
        "name: native\nentrypoint: python3 script.py\nhyperparameters: {lr: 0.01}\nresources: {slots_per_trial: 2}\n"
        "searcher: {max_length: {batches: 2}}\n"
    )
    done = start(tmp_path, "-m", "trial_runtime.train", "c.yaml")
    assert done.returncode == 0, done.stderr
    assert reports(tmp_path / "runs/native-1") == [("training", 2), ("validation", 2)]
    printed = (done.stdout + done.stderr).splitlines()
    assert sum("LR 0.01 3" in line for line in printed) == 2
    assert not any("AFTER" in line for line in printed)


def test_a_local_test_trains_one_batch_in_the_script_itself(tmp_path: Path) -> None:
    write(tmp_path, RUNTIME)
    done = start(tmp_path, "script.py", "--local", "--test")
    assert done.returncode == 0, done.stderr
    assert "AFTER" in done.stdout and "LR 0.05 3" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "__pycache__") == ["script.py"]


def test_a_config_that_cannot_be_run_ends_the_script(tmp_path: Path) -> None:
    write(tmp_path, RUNTIME)
    script = tmp_path / "script.py"
    script.write_text(script.read_text().replace('"searcher": {', '"serching": {'))
    done = start(tmp_path, "script.py")
    assert done.returncode != 0
    assert "searcher.max_length: is missing" in done.stderr and "AFTER" not in done.stdout


class LineTrial(pytorch.PyTorchTrial):
    """A trial that is only made."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        self.model = context.wrap_model(torch.nn.Linear(2, 1))

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        raise NotImplementedError

    def build_training_data_loader(self) -> pytorch.DataLoader:
        raise NotImplementedError

    build_validation_data_loader = build_training_data_loader


CONFIG: dict[str, Any] = {"hyperparameters": {"global_batch_size": 4, "lr": {"type": "const", "val": 0.05}}}


def test_an_instance_of_a_trial_is_made_without_training(tmp_path: Path) -> None:
    trial = experimental.create_trial_instance(LineTrial, str(tmp_path / "checkpoints"), CONFIG)
    assert isinstance(trial, LineTrial)
    assert trial.context.get_hparam("lr") == 0.05
    other = experimental.create_trial_instance(LineTrial, str(tmp_path), hparams={"lr": 0.1, "global_batch_size": 2})
    assert other.context.get_hparam("lr") == 0.1
    assert isinstance(next(iter(other.model.parameters())), torch.Tensor)


def test_a_search_space_cannot_be_tested(tmp_path: Path) -> None:
    del tmp_path
    config = {"hyperparameters": {"lr": {"type": "double", "minval": 0, "maxval": 1}}}
    with pytest.raises(ConfigError, match="lr"):
        experimental.test_one_batch(LineTrial, config)
