"""The pre-commit hook, run by pre-commit itself on real commits.

The hook is the one in ``.pre-commit-hooks.yaml``, with this environment in place of one that pre-commit would install.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from shell_samples import git

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "fixtures/guide/before"
BASE = b"""\
from determined.pytorch import PyTorchTrial


class Base(PyTorchTrial):
    def __init__(self, context):
        self.context = context
"""
DERIVED = b"""\
import os

from base import Base


class Derived(Base):
    def train_batch(self, batch, epoch_idx, batch_idx):
        return {"loss": self.model(batch)}
"""


def hook() -> dict[str, object]:
    (only,) = YAML(typ="safe").load(ROOT / ".pre-commit-hooks.yaml")
    return dict(only)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git repository whose commits go through the hook."""
    monkeypatch.setenv("PRE_COMMIT_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    root = tmp_path / "repository"
    root.mkdir()
    local = hook()
    program, *arguments = str(local["entry"]).split()
    assert program == "ds-migrate"
    local |= {"language": "system", "entry": f"{sys.executable} -m ds_migrate {' '.join(arguments)}"}
    (root / ".pre-commit-config.yaml").write_text(json.dumps({"repos": [{"repo": "local", "hooks": [local]}]}))
    git(root, "init", "-q")
    git(root, "add", "-A")
    return root


def run_hook(root: Path, **files: bytes) -> tuple[int, str]:
    """Stage the files (``a__b`` is a/b.py) and run pre-commit on what is staged; its exit code and output."""
    for name, data in files.items():
        path = root / (name.replace("__", "/") + ".py")
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        git(root, "add", str(path))
    done = subprocess.run(
        [sys.executable, "-m", "pre_commit", "run", "--color=never"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_commit_that_adds_an_unconverted_trial_is_stopped(repository: Path) -> None:
    code, output = run_hook(repository, model_def=(GUIDE / "model_def.py").read_bytes())
    assert code == 1
    assert "MyTrial is a PyTorchTrial that --write converts" in output
    assert "ds-migrate --write model_def.py" in output


def test_a_commit_without_a_trial_passes(repository: Path) -> None:
    code, output = run_hook(repository, a=b"import os\n", pkg__b=b"print('Trial')\n")
    assert code == 0, output
    assert "Passed" in output


def test_a_commit_that_adds_a_blocked_trial_is_stopped(repository: Path) -> None:
    blocked = (
        (GUIDE / "model_def.py")
        .read_bytes()
        .replace(b"step_optimizer(", b"step_optimizer(auto_zero_grads=False, optimizer=")
    )
    code, output = run_hook(repository, model_def=blocked)
    assert code == 1
    assert "blocked" in output


def test_a_file_that_does_not_parse_stops_the_commit(repository: Path) -> None:
    code, output = run_hook(repository, model_def=b"class T(determined.pytorch.PyTorchTrial:\n")
    assert code == 1
    assert "exit code: 2" in output


def test_a_commit_after_the_conversion_passes(repository: Path) -> None:
    (repository / "model_def.py").write_bytes((GUIDE / "model_def.py").read_bytes())
    (repository / "const.yaml").write_bytes((GUIDE / "const.yaml").read_bytes())
    written = subprocess.run(
        [sys.executable, "-m", "ds_migrate", "--write", "."], cwd=repository, capture_output=True, check=False
    )
    assert written.returncode == 0, written.stderr
    code, output = run_hook(repository, model_def=(repository / "model_def.py").read_bytes())
    assert code == 0, output


@pytest.mark.parametrize("staged", [{"derived": DERIVED}, {"base": BASE}])
def test_a_trial_over_two_files_is_seen_from_either(repository: Path, staged: dict[str, bytes]) -> None:
    (repository / "base.py").write_bytes(BASE)
    (repository / "derived.py").write_bytes(DERIVED)
    code, output = run_hook(repository, **staged)
    assert code == 1, output


def test_files_are_checked_in_one_run(repository: Path) -> None:
    assert hook()["require_serial"] is True
    modules = {f"m{number}": b"import os\n" for number in range(12)}
    code, output = run_hook(repository, base=BASE, derived=DERIVED, **modules)
    assert code == 1
    assert output.count("trials in 14 files") == 1
