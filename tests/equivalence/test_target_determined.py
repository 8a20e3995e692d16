"""Converted with ``--target determined``, every fixture trains the same in Determined's own DeepSpeedTrial loop.

On one rank and on a CPU. That loop starts its batch index anew after each report (0.38.x), so that periods longer than
a report never come due: both sides validate at the end only.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from ds_migrate.files.discovery import discover
from ds_migrate.findings import Report, Severity, TrialStatus
from ds_migrate.options import Options
from ds_migrate.pipeline import migrate
from ds_verify.compare import compare, table
from ds_verify.record import Key, Record
from fixture_folders import TRIALS

from equivalence.runs import Runs
from equivalence.scenario import Scenario

# This trial reads epoch_idx (from epoch 2 on it adds no noise) and counts epoch starts: Determined's loop gives it
# neither, the report says so (*review*), and the numbers part there.
REVIEWED = "schedule_clip_reducers"
BATCHES_BEFORE_EPOCH_2 = 12

pytestmark = pytest.mark.timeout(300)


def converted(folder: Path, name: str) -> tuple[Path, Report]:
    """A copy of a fixture, converted for Determined; its accumulating config is left out, see the test below."""
    copy = folder / name
    shutil.copytree(
        Scenario(name, "oracle").folder, copy, ignore=shutil.ignore_patterns("__pycache__", "accumulate.yaml")
    )
    report = migrate(discover([copy]), Options(target="determined"))
    for file in report.files:
        if file.to_write and file.after is not None:
            file.path.write_bytes(file.after)
    return copy, report


def promised(name: str, key: Key) -> bool:
    """Whether the value must be equal: all but what the report puts up for review."""
    if name != REVIEWED:
        return key.kind in ("training", "validation", "state")
    return key.kind == "training" and key.step <= BATCHES_BEFORE_EPOCH_2 and key.name != "epochs_started"


@pytest.mark.parametrize("name", TRIALS)
def test_trains_the_same_in_determineds_own_loop(runs: Runs, tmp_path: Path, name: str) -> None:
    copy, report = converted(tmp_path, name)
    assert [t.status for _, t in report.trials()] == [TrialStatus.CONVERTED]
    assert not any(b"trial_runtime" in (f.after or b"") for f in report.files)
    oracle = runs.get(Scenario(name, "oracle", validates=False))
    trained = runs.get(Scenario(name, "target", source=str(copy), validates=False))
    reviewed = {f.code for _, f in report.findings(Severity.REVIEW)} - {"DSM201"}  # comments, which change no number
    assert reviewed == ({"DSM310", "DSM350"} if name == REVIEWED else set())
    expected, actual = (Record({k: v for k, v in r.values.items() if promised(name, k)}) for r in (oracle, trained))
    assert len(actual.values) >= 14
    differences = compare(expected, actual)
    assert not differences, table(differences)


def test_what_that_loop_cannot_do_is_reported(tmp_path: Path) -> None:
    copy = tmp_path / "accumulating"
    shutil.copytree(Scenario("schedule_clip_reducers", "oracle").folder, copy)
    report = migrate(discover([copy]), Options(target="determined"))
    assert [t.status for _, t in report.trials()] == [TrialStatus.BLOCKED]
    assert {f.code for _, f in report.findings()} == {"DSM203"}
    assert not any(f.to_write for f in report.files)
