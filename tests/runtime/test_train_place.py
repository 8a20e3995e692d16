"""Where ds-train looks for a trial's code when only the config is named."""

from pathlib import Path

import pytest
from trial_runtime.commands import train
from trial_runtime.train.config.context_directory import context_of


def project(folder: Path, *files: str) -> Path:
    for name in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder


@pytest.mark.parametrize(
    ("entrypoint", "code"),
    [
        ("src.model_def:Trial", "src/model_def.py"),
        ("src.trial:Trial", "src/trial/__init__.py"),
        ("python3 -m determined.launch.torch_distributed python3 tools/train.py --lr 1", "tools/train.py"),
        (["python3", "-m", "src.train"], "src/train.py"),
        ("python3 -m src", "src/__main__.py"),
    ],
)
def test_the_nearest_folder_above_the_config_that_holds_the_code(entrypoint: object, code: str, tmp_path: Path) -> None:
    here = project(tmp_path, ".git/HEAD", code, "experiments/mnist/configs/a.yaml")

    assert context_of(here / "experiments/mnist/configs/a.yaml", {"entrypoint": entrypoint}) == here


def test_the_configs_own_folder_comes_first(tmp_path: Path) -> None:
    here = project(tmp_path, ".git/HEAD", "model_def.py", "small/model_def.py", "small/a.yaml")

    assert context_of(here / "small/a.yaml", {"entrypoint": "model_def:Trial"}) == here / "small"


@pytest.mark.parametrize("entrypoint", ["elsewhere:Trial", "bash run.sh", None])
def test_the_configs_own_folder_where_the_code_is_nowhere(entrypoint: object, tmp_path: Path) -> None:
    here = project(tmp_path, ".git/HEAD", "model_def.py", "configs/a.yaml")

    assert context_of(here / "configs/a.yaml", {"entrypoint": entrypoint}) == here / "configs"


def test_nothing_outside_of_the_git_work_tree_or_the_working_directory_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = project(tmp_path, "model_def.py", "inner/configs/a.yaml")
    config, document = outside / "inner/configs/a.yaml", {"entrypoint": "model_def:Trial"}

    monkeypatch.chdir(outside / "inner")
    assert context_of(config, document) == config.parent
    monkeypatch.chdir(outside)
    assert context_of(Path("inner/configs/a.yaml"), document) == outside
    project(outside, "inner/.git/HEAD")
    assert context_of(config, document) == config.parent


def test_a_config_in_a_folder_of_its_own_needs_no_second_argument(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project(tmp_path, ".git/HEAD", "model_def.py", "startup-hook.sh", "configs/a.yaml")
    (tmp_path / "configs/a.yaml").write_text("entrypoint: model_def:Trial\nsearcher: {max_length: 3}\n")
    monkeypatch.chdir(tmp_path / "configs")
    monkeypatch.delenv("RANK", raising=False)

    assert train(["a.yaml", "--dry-run"]) == 0

    shown = capsys.readouterr().err
    assert f"model_def:Trial in {tmp_path} on 1 process" in shown
    assert "startup-hook.sh: not run" in shown
