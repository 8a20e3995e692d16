"""A fault of the tool itself on one trial is that trial's error, and the others are converted all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import examples
import pytest
from ds_migrate.conversion import unit
from ds_migrate.findings import FileStatus, TrialStatus


@pytest.mark.parametrize("step", ["model", "plan"])
def test_a_fault_on_one_trial_does_not_stop_the_others(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bad", "good"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model_def.py").write_text(examples.module().replace("MyTrial", f"{name.title()}Trial"))
    wrong = "decide" if step == "model" else "conversion_rules"
    right = getattr(unit, wrong)
    calls = []

    def faulty(*arguments: Any) -> object:
        calls.append(arguments)
        if len(calls) == 1:
            raise AssertionError("a case nobody thought of")
        return right(*arguments)

    monkeypatch.setattr(unit, wrong, faulty)
    report = examples.run(tmp_path)
    statuses = {trial.name: trial.status for _, trial in report.trials()}
    assert sorted(statuses.values()) == [TrialStatus.BLOCKED, TrialStatus.CONVERTED]
    (failed,) = [f for f in report.files if f.status is FileStatus.ERROR]
    assert failed.after is None
    assert "a case nobody thought of" in failed.findings[0].message
