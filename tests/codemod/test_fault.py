"""A fault of the tool itself on one trial is that trial's error, and the others are converted all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import examples
import pytest
from ds_migrate.conversion import attempt
from ds_migrate.findings import FileStatus, TrialStatus


@pytest.mark.parametrize("step", ["model", "plan"])
def test_a_fault_on_one_trial_does_not_stop_the_others(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bad", "good"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model_def.py").write_text(examples.module().replace("MyTrial", f"{name.title()}Trial"))
    wrong = "decide" if step == "model" else "conversion_rules"
    right = getattr(attempt, wrong)
    calls = []

    def faulty(*arguments: Any) -> object:
        calls.append(arguments)
        if len(calls) == 1:
            raise AssertionError("a case nobody thought of")
        return right(*arguments)

    monkeypatch.setattr(attempt, wrong, faulty)
    report = examples.run(tmp_path)
    statuses = {trial.name: trial.status for _, trial in report.trials()}
    assert sorted(statuses.values()) == [TrialStatus.BLOCKED, TrialStatus.CONVERTED]
    (failed,) = [f for f in report.files if f.status is FileStatus.ERROR]
    assert failed.after is None
    assert "a case nobody thought of" in failed.findings[0].message


def test_an_unexpected_error_is_shown_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model_def.py").write_text(examples.module())

    def faulty(*_: Any) -> object:
        raise ValueError("FunctionDef(\n" + 9000 * "    name=Name(\n")

    monkeypatch.setattr(attempt, "decide", faulty)
    (failed,) = [f for f in examples.run(tmp_path).files if f.status is FileStatus.ERROR]
    message = failed.findings[0].message
    assert len(message) < 500 and "\n" not in message
    assert message.startswith("ds-migrate failed: ValueError: FunctionDef( name=Name(")


@pytest.mark.parametrize(
    ("above", "expected"), [("", "trial.model.module.state_dict()"), ("Server(self)", "trial.model.state_dict()")]
)
def test_another_class_may_read_the_trial_in_its_set_up(above: str, expected: str, tmp_path: Path) -> None:
    server = (
        "\n\nclass Server:\n    def __init__(self, trial: MyTrial):\n        self.kept = trial.model.state_dict()\n"
    )
    init = examples.METHODS["__init__"].replace("    self.optimizer", f"    {above or 'pass'}\n    self.optimizer", 1)
    result = examples.convert(tmp_path, examples.module(init) + server)
    assert examples.problems(result) == []
    assert result.after is not None
    assert f"self.kept = {expected}" in result.after.decode()
