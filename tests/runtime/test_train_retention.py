"""Which checkpoints are left when a run has ended."""

import dataclasses
import json
import os
from pathlib import Path

import pytest
from trial_runtime._cluster_info import ClusterInfo, RunInfo, TrialInfo
from trial_runtime.train.run.retention import remove_superseded

LOSSES = {2: 0.9, 4: 0.3, 6: 0.5, 8: 0.3, 10: None}


@pytest.fixture
def info(tmp_path: Path) -> ClusterInfo:
    """A run with a checkpoint every two batches; the last one is not validated."""
    run = RunInfo(str(tmp_path), str(tmp_path / "checkpoints"), searcher_metric="loss")
    for batches, loss in LOSSES.items():
        folder = tmp_path / "checkpoints" / f"{batches:08d}-ab"
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text(json.dumps({"progress": {"batches": batches}}))
        os.utime(folder, (batches, batches))
        if loss is not None:
            report = {"group": "validation", "steps_completed": batches, "metrics": {"loss": loss}}
            with run.metrics_path.open("a") as file:
                file.write(json.dumps(report) + "\n")
    with run.metrics_path.open("a") as file:
        file.write('{"group": "vali')  # a run that was killed
    (tmp_path / "checkpoints" / "latest").write_text("00000010-ab\n")
    (tmp_path / "checkpoints" / "not-a-checkpoint").mkdir()
    return ClusterInfo(TrialInfo(1, 1, 0, {}, {}), run, [0])


def left(info: ClusterInfo, **limits: object) -> list[int]:
    """The batches of the checkpoints that are left."""
    run = dataclasses.replace(info.run, **limits)  # type: ignore[arg-type]
    removed = remove_superseded(dataclasses.replace(info, run=run))
    names = {path.name for path in Path(run.checkpoint_directory).iterdir()}
    assert {"latest", "not-a-checkpoint"} <= names
    assert names.isdisjoint(removed)
    return sorted(int(name.partition("-")[0]) for name in names if name.endswith("-ab"))


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, [2, 4, 6, 8, 10]),
        ({"save_trial_best": 1, "save_trial_latest": 1}, [4, 10]),
        ({"save_trial_best": 2, "save_trial_latest": 0}, [4, 8, 10]),
        ({"save_trial_best": 0, "save_trial_latest": 3}, [6, 8, 10]),
        ({"save_trial_best": 0, "save_trial_latest": 0}, [10]),
        ({"save_trial_best": 9, "save_trial_latest": 9}, [2, 4, 6, 8, 10]),
        ({"save_trial_best": 1, "save_trial_latest": 0, "smaller_is_better": False}, [2, 10]),
        ({"save_trial_best": 0, "save_trial_latest": 1, "searcher_metric": None}, [10]),
    ],
)
def test_the_best_the_latest_and_always_the_newest_stay(
    limits: dict[str, object], expected: list[int], info: ClusterInfo
) -> None:
    assert left(info, **limits) == expected


@pytest.mark.parametrize("metric", [None, "accuracy"])
def test_all_stay_where_the_best_are_not_known(
    metric: str | None, info: ClusterInfo, caplog: pytest.LogCaptureFixture
) -> None:
    assert left(info, save_trial_best=1, save_trial_latest=1, searcher_metric=metric) == [2, 4, 6, 8, 10]
    assert f"no validation reported the metric {metric!r}" in caplog.text


def test_after_a_restart_the_later_report_counts(info: ClusterInfo) -> None:
    lines = [json.dumps({"group": "validation", "steps_completed": 6, "metrics": {"loss": 0.1}})]
    with info.run.metrics_path.open("a") as file:
        file.write("\n" + "\n".join(lines) + "\n")

    assert left(info, save_trial_best=1, save_trial_latest=0) == [6, 10]
