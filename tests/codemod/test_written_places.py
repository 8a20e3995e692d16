"""After ``--write`` a finding has the line and column of the file as written, in every format."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ds_migrate.cli import main
from ds_migrate.cli.written_places import written_place

HOOK = "on_checkpoint_end"
TRIAL = """\
from typing import Any, Dict

import torch
from determined.pytorch import DataLoader, PyTorchCallback, PyTorchTrial, PyTorchTrialContext


class Trial(PyTorchTrial):
    def __init__(self, context: PyTorchTrialContext) -> None:
        self.context = context
        self.model = context.wrap_model(torch.nn.Linear(4, 1))
        self.opt = context.wrap_optimizer(torch.optim.Adam(self.model.parameters(), 1e-3))

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Dict[str, Any]:
        loss = self.model(batch).mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.opt)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any) -> Dict[str, Any]:
        return {"loss": self.model(batch).mean()}

    def build_training_data_loader(self) -> DataLoader:
        return DataLoader(torch.zeros(8, 4), batch_size=2)

    def build_validation_data_loader(self) -> DataLoader:
        return DataLoader(torch.zeros(8, 4), batch_size=2)

    def build_callbacks(self) -> Dict[str, PyTorchCallback]:
        return {"mark": Mark()}


class Mark(PyTorchCallback):
    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        print(checkpoint_dir)
"""
POSITION = re.compile(r"trial\.py:(\d+):(\d+) (?:DSM350)")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "trial.py").write_text(TRIAL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _place(text: str, form: str) -> tuple[int, int]:
    """Return the line and column of the finding about the hook in the output of one format."""
    if form == "json":
        findings = json.loads(text)["files"][0]["findings"]
        return next((f["line"], f["column"]) for f in findings if f["code"] == "DSM350" and f["severity"] == "review")
    if form == "sarif":
        found: list[Any] = [r for r in json.loads(text)["runs"][0]["results"] if r["ruleId"] == "DSM350"]
        region = found[0]["locations"][0]["physicalLocation"]["region"]
        return region["startLine"], region["startColumn"]
    pattern = r"title=DSM350,line=(\d+),col=(\d+)" if form == "github" else POSITION.pattern
    place = re.search(pattern, text)
    assert place is not None, text
    return int(place[1]), int(place[2])


@pytest.mark.parametrize("form", ["text", "terminal", "json", "github", "sarif"])
def test_findings_after_a_write_are_where_the_written_file_has_them(
    form: str, here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    output = {"text": [], "terminal": ["--color", "always"]}.get(form, ["--format", form])
    assert main(["--write", *output, "trial.py"]) == 0
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capfd.readouterr().out)
    line, column = _place(shown, form)
    written = (here / "trial.py").read_text().splitlines()
    assert written.index(TRIAL.splitlines()[32]) != 32
    assert written[line - 1][column - 1 :].startswith(HOOK)


@pytest.mark.usefixtures("here")
def test_a_preview_keeps_the_places_of_the_file_as_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--format", "json", "trial.py"]) == 0
    line, column = _place(capfd.readouterr().out, "json")
    assert TRIAL.splitlines()[line - 1][column - 1 :].startswith(HOOK)


@pytest.mark.usefixtures("here")
def test_a_file_that_could_not_be_written_keeps_its_places(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    assert main(["--write", "--format", "json", "trial.py"]) == 2
    line, column = _place(capfd.readouterr().out, "json")
    assert TRIAL.splitlines()[line - 1][column - 1 :].startswith(HOOK)


def test_a_notebook_has_the_lines_of_its_written_cells(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def cell(source: str) -> dict[str, Any]:
        return {
            "cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [],
            "source": source.splitlines(keepends=True),
        }  # fmt: skip

    (here / "trial.py").unlink()
    cells = [cell("import os"), cell(TRIAL)]
    (here / "n.ipynb").write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    assert main(["--write", "--format", "json", "n.ipynb"]) == 0
    findings = json.loads(capfd.readouterr().out)["files"][0]["findings"]
    hook = next(f for f in findings if f["code"] == "DSM350" and f["severity"] == "review")
    assert hook["cell"] == 2
    source = "".join(json.loads((here / "n.ipynb").read_text())["cells"][1]["source"])
    assert source.splitlines()[hook["line"] - 1][hook["column"] - 1 :].startswith(HOOK)


@pytest.mark.usefixtures("here")
def test_standard_input_names_places_of_what_it_prints() -> None:
    command = [sys.executable, "-m", "ds_migrate", "-", "--stdin-filename", "trial.py"]
    done = subprocess.run(command, input=TRIAL, capture_output=True, text=True, check=False, timeout=60)
    line, column = _place(done.stderr, "text")
    assert done.stdout.splitlines()[line - 1][column - 1 :].startswith(HOOK)


def test_a_place_moves_with_its_line_and_its_words() -> None:
    move = written_place("a = 1\nfoo(one, two)\ngone here\nz = 3\n", "new\na = 1\nbar = foo(one, three)\nz = 3\n")
    assert move((1, 1)) == (2, 1)
    assert move((2, 5)) == (3, 11)  # `one`
    assert move((3, 4))[0] in (3, 4)
    assert move((4, 5)) == (4, 5)
    assert move((0, 0)) == (0, 0)
    assert move((99, 1)) == (99, 1)
