"""``ds-verify`` runs a trial for the API before 0.13 as it is, and its conversion, on one rank and on two."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from ds_verify.cli import main
from ds_verify.exit_codes import SAME

TRIAL = Path(__file__).parent / "old_api" / "before"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("config", [pytest.param("const.yaml", marks=pytest.mark.slow), "accumulate.yaml"])
def test_an_old_trial_and_its_conversion_are_the_same(
    config: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = main([str(TRIAL), "--config", config, "--steps", "12", "--device", "cpu", "--no-report"])
    printed = capsys.readouterr()
    assert code == SAME, printed.out + printed.err
    assert printed.out.splitlines()[-1].startswith("same: 12 batches with 1 and 2 ranks")


def test_a_trial_of_2019_runs_under_the_name_that_determined_had_then(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    project = shutil.copytree(TRIAL, tmp_path / "project")
    source = project / "model_def.py"
    text = source.read_text().replace("import determined as det\n", "import pedl\n")
    text = text.replace("context: det.TrialContext", "context")
    head, _, rest = text.partition("from determined.pytorch import (")
    names, _, rest = rest.partition(")\n")
    kept = "from determined.pytorch import ClipGradsL2Norm\n"  # of 2020, and the only one of that
    moved = ", ".join(name.strip() for name in names.split(",") if name.strip() not in ("", "ClipGradsL2Norm"))
    text = f"{head}from pedl.frameworks.pytorch import {moved}\n{kept}{rest}"
    text = text.replace('self.context.get_hparam("n_filters")', 'pedl.get_hyperparameter("n_filters")')
    source.write_text(text)
    code = main(
        [str(project), "--config", "const.yaml", "--steps", "4", "--ranks", "1", "--device", "cpu", "--no-report"]
    )
    printed = capsys.readouterr()
    assert code == SAME, printed.out + printed.err
