"""The program of docs/agents.md migrates a project as the page says."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/agents.md").read_text(encoding="utf-8")
Unblock = Callable[[Path, dict[str, Any], dict[str, Any]], bool]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project whose trial is blocked by one argument."""
    commands = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    monkeypatch.setenv("PATH", commands)
    monkeypatch.chdir(tmp_path)
    project = Path(shutil.copytree(ROOT / "fixtures/guide/before", tmp_path / "project"))
    source = (project / "model_def.py").read_text(encoding="utf-8")
    blocked = source.replace("step_optimizer(self.optimizer)", "step_optimizer(self.optimizer, **{})")
    assert blocked != source
    (project / "model_def.py").write_text(blocked, encoding="utf-8")
    return project


def program() -> dict[str, Any]:
    """Return the names of the program on the page."""
    (text,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
    names: dict[str, Any] = {}
    exec(compile(text, "docs/agents.md", "exec"), names)
    return names


def write_out_arguments(path: Path, found: dict[str, Any], page: dict[str, Any]) -> bool:
    """Do what the page of the code says for this message."""
    (way,) = [each["way_out"] for each in page["blocked"] if each["message"] == found["message"]]
    assert way.startswith("Write the arguments out.") and found["code"] == "DSM302"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(", **{}", ""), encoding="utf-8")
    return True


def test_the_loop_unblocks_converts_and_ends(project: Path) -> None:
    assert program()["drive"](project, project / "const.yaml", write_out_arguments, has_runtime=False) == []
    assert "DeepSpeedTrial" in (project / "model_def.py").read_text(encoding="utf-8")


def test_what_nothing_unblocks_is_left_to_a_person(project: Path) -> None:
    before = (project / "model_def.py").read_bytes()
    left = program()["drive"](project, project / "const.yaml", lambda *_: False)
    assert [found["code"] for _, found in left] == ["DSM302"]
    assert (project / "model_def.py").read_bytes() == before


@pytest.mark.slow
def test_the_whole_program_compares_converts_and_plans_the_training(project: Path) -> None:
    assert program()["drive"](project, project / "const.yaml", write_out_arguments) == []
    assert "DeepSpeedTrial" in (project / "model_def.py").read_text(encoding="utf-8")


def test_the_schemas_that_the_page_names_are_there() -> None:
    assert set(re.findall(r"`(ds_\w+/\S+\.json)`", PAGE)) == {
        "ds_migrate/report/schema.json",
        "ds_verify/schema.json",
    }
    assert (ROOT / "codemod/ds_migrate/report/schema.json").is_file()
    assert (ROOT / "runtime/ds_verify/schema.json").is_file()
