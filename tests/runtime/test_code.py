"""The code in a checkpoint: what the trial imported from its own directory, whatever that directory is like."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path

import pytest
import toys
from forked_python import forked_python
from trial_runtime import pytorch
from trial_runtime.pytorch._checkpoints.trial_code import save_code, trial_root

SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
import toys
from trial_runtime import pytorch
{imports}

class Trial(toys.SimplePT):
    pass

if __name__ == "__main__":
    with pytorch.init(hparams={hparams!r}, exp_conf={exp_conf!r}) as context:
        pytorch.Trainer(Trial(context), context).fit(max_length=pytorch.Batch(2), checkpoint_period=pytorch.Batch(1))
"""


def write(path: Path, imports: str = "", hparams: dict[str, object] | None = None, storage: Path | None = None) -> None:
    exp_conf = {"checkpoint_storage": {"type": "directory", "container_path": str(storage or "checkpoints")}}
    values = {"tests": str(Path(toys.__file__).parent), "hparams": hparams or {}, "exp_conf": exp_conf}
    path.write_text(SCRIPT.format(imports=imports, **values))


def run(folder: Path, *command: str) -> None:
    done = subprocess.run([forked_python(), *command], cwd=folder, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


def saved(checkpoints: Path) -> tuple[Path, list[str]]:
    """The latest checkpoint, and its code files."""
    checkpoint = checkpoints / (checkpoints / "latest").read_text().strip()
    code = checkpoint / "code"
    return checkpoint, sorted(str(path.relative_to(code)) for path in code.rglob("*") if path.is_file())


def test_storage_links_and_big_files_beside_the_trial(tmp_path: Path) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    for folder in (project, elsewhere, project / "data", project / "venv" / "lib" / "site-packages"):
        folder.mkdir(parents=True, exist_ok=True)
    (elsewhere / "shared.py").write_text("value = 1\n")
    (project / "linked.py").symlink_to(elsewhere / "shared.py")
    (project / "data" / "images.bin").write_bytes(b"0" * 5000)
    (project / "labels.json").write_text(json.dumps("0" * (1 << 20)))  # data, not a config
    (project / "broken.json").symlink_to(project / "nowhere.json")
    (project / "loop").symlink_to(project)
    (project / "folder.yaml").mkdir()
    (project / "const.yaml").write_text("name: x\n")
    (project / "venv" / "lib" / "site-packages" / "installed.py").write_text("value = 2\n")
    imports = "import linked\nsys.path.append('venv/lib/site-packages')\nimport installed"
    write(project / "train.py", imports, storage=project)  # checkpoints among the sources
    run(project, "train.py")
    checkpoint, code = saved(project)
    assert code == ["const.yaml", "linked.py", "train.py"]
    assert (checkpoint / "code" / "linked.py").read_text() == "value = 1\n"
    assert not (checkpoint / "code" / "linked.py").is_symlink()


def test_a_module_of_a_package_comes_back_with_its_neighbours(tmp_path: Path) -> None:
    package = tmp_path / "work" / "nets" / "small"
    package.mkdir(parents=True)
    (tmp_path / "work" / "nets" / "__init__.py").write_text("")
    (package / "layers.py").write_text("width = 3\n")  # small/ is a namespace package
    write(package / "trial.py", "from . import layers\nimport nets.small.layers")
    run(tmp_path / "work", "-m", "nets.small.trial")
    checkpoint, code = saved(tmp_path / "work" / "checkpoints")
    assert code == ["nets/__init__.py", "nets/small/layers.py", "nets/small/trial.py"]
    assert type(pytorch.load_trial_from_checkpoint_path(checkpoint)).__name__ == "Trial"


def test_the_config_that_a_hyperparameter_names_goes_with_it(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "zero1.json").write_text("{}")
    write(tmp_path / "train.py", hparams={"deepspeed_config": "configs/zero1.json"})
    run(tmp_path, "train.py")
    assert saved(tmp_path / "checkpoints")[1] == ["configs/zero1.json", "train.py"]


def test_a_trial_without_a_file_brings_the_modules_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notebook_helper.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("notebook_helper")
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    in_a_cell = type("Trial", (), {"__module__": "__main__"})
    assert trial_root(in_a_cell) == tmp_path
    save_code(in_a_cell, tmp_path / "code")
    assert [path.name for path in (tmp_path / "code").iterdir()] == ["notebook_helper.py"]
    del sys.modules["notebook_helper"]


def test_nothing_of_python_or_of_installed_packages(tmp_path: Path) -> None:
    assert trial_root(json.JSONDecoder) is None
    assert trial_root(pytest.Item) is None
    above_python = type("Trial", (), {"__module__": "above_python"})
    module = types.ModuleType("above_python")
    module.__file__ = str(Path(json.__file__).parents[3] / "above_python.py")  # a home with a Python inside
    sys.modules["above_python"] = module
    try:
        save_code(above_python, tmp_path)
    finally:
        del sys.modules["above_python"]
    assert not [path for path in tmp_path.rglob("*.py") if "encodings" in path.parts]


def test_what_cannot_be_read_is_named_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def copyfile(source: Path, target: Path) -> None:
        raise PermissionError(13, f"Permission denied to copy to {target}", str(source))

    monkeypatch.setattr("shutil.copyfile", copyfile)
    save_code(toys.SimplePT, tmp_path)
    assert "toys.py does not go with the checkpoint" in caplog.text
