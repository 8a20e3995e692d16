"""``ds-verify`` runs a trial for the API before 0.13 as it is, and its conversion, on one rank and on two."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_verify.cli import SAME, main

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
