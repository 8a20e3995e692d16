"""A config that cannot be parsed keeps the trial that it names from being converted, and no other trial."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.cli import main

FIXTURE = Path(__file__).parents[2] / "fixtures/guide/before/model_def.py"
BROKEN = "name: x\n\tbad: [\nentrypoint: {}\nhyperparameters: {{global_batch_size: 4}}\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    source = FIXTURE.read_text()
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "model_def.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _class_name() -> str:
    line = next(line for line in FIXTURE.read_text().splitlines() if line.startswith("class ") and "Trial)" in line)
    return line.removeprefix("class ").partition("(")[0]


ENTRYPOINTS = [
    "model_def:{}",
    "python3 -m determined.launch.torch_distributed model_def:{}",
    "[python3, -m, determined.launch.torch_distributed, 'model_def:{}'",
    "\n  - python3\n  - -m\n  - determined.launch.horovod\n  - model_def:{}",
]


@pytest.mark.parametrize("entrypoint", ENTRYPOINTS)
def test_the_trial_that_it_names_is_blocked_and_the_other_one_converted(
    entrypoint: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = here / "a/const.yaml"
    broken.write_text(BROKEN.format(entrypoint.format(_class_name())))
    before = broken.read_bytes(), (here / "a/model_def.py").read_bytes()
    assert main(["--write", "."]) == 2
    assert (broken.read_bytes(), (here / "a/model_def.py").read_bytes()) == before
    assert "DeepSpeedTrial" in (here / "b/model_def.py").read_text()
    said = capsys.readouterr().out
    assert f"DSM411 blocked: const.yaml, which configures {_class_name()}, cannot be read (line 2:1: " in said
    assert "a/const.yaml:2:1 DSM411 error: " in said
    assert "leave it out: --exclude const.yaml" in said


def test_it_can_be_left_out(here: Path) -> None:
    (here / "a/const.yaml").write_text(BROKEN.format(f"model_def:{_class_name()}"))
    assert main(["--write", "--exclude", "const.yaml", "."]) == 0
    assert "DeepSpeedTrial" in (here / "a/model_def.py").read_text()


def test_one_that_may_accumulate_cannot_be_left_out(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = BROKEN.format(f"model_def:{_class_name()}") + "optimizations: {aggregation_frequency: 4}\n"
    (here / "a/const.yaml").write_text(text)
    assert main(["--write", "--exclude", "const.yaml", "."]) == 1
    assert "DeepSpeedTrial" not in (here / "a/model_def.py").read_text()
    assert "help: fix it and run again\n" in capsys.readouterr().out


def test_one_named_file_reports_its_broken_config_only(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in (BROKEN.format(f"model_def:{_class_name()}"), f"entrypoint: gone:{_class_name()}\n"):
        (here / "b/const.yaml").write_text(text)
        assert main(["a/model_def.py"]) == 0
        output = capsys.readouterr()
        assert "DSM411" not in output.err
        assert "DSM412" not in output.err
    (here / "a/const.yaml").write_text(BROKEN.format(f"model_def:{_class_name()}"))
    assert main(["a/model_def.py"]) == 0
    assert "a/const.yaml:2:1 DSM411 review: " in capsys.readouterr().err


def test_run_directories_are_no_news_to_a_named_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = here / "a/out"
    run.mkdir()
    (run / "run.json").write_text('{"id": "1", "number": 1, "seed": 0, "status": "done"}')
    (run / "config.yaml").write_text(BROKEN.format(f"model_def:{_class_name()}"))
    assert main(["a/model_def.py"]) == 0
    assert "DSM411" not in capsys.readouterr().err
