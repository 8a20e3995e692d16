"""``ds-train runs``: run directories listed, compared, exported and removed, without torch."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from trial_runtime._cluster_info import CLUSTER_INFO_FILE, ClusterInfo, RunInfo, TrialInfo
from trial_runtime._run_record import update_record
from trial_runtime.train.cli import main
from trial_runtime.train.run.end_of_run import end_of_run


def make_run(path: Path, values: list[float | str], *, status: str = "completed", **hparams: Any) -> Path:
    """Write what a run leaves: ``values`` of validation_loss after 10, 20, ... batches, and a checkpoint at each."""
    path.mkdir(parents=True)
    run = RunInfo(str(path), str(path / "checkpoints"), searcher_metric="validation_loss")
    (path / CLUSTER_INFO_FILE).write_text(ClusterInfo(TrialInfo(1, 1, 3, hparams, {}), run, [0]).to_json())
    (path / "run.json").write_text(json.dumps({"id": "ab", "number": 1, "seed": 3, "status": status}))
    (path / "config.yaml").write_text("name: x\n")
    lines = []
    for index, value in enumerate(values, 1):
        metrics = {"batches": index * 10, "validation_loss": value}
        lines.append(json.dumps({"group": "validation", "steps_completed": index * 10, "metrics": metrics}))
        folder = path / f"checkpoints/{index * 10:08d}-0123456{index}"
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text(json.dumps({"progress": {"batches": index * 10}}))
    (path / "metrics.jsonl").write_text("\n".join(lines) + '\n{"half a li')
    return path


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    make_run(tmp_path / "runs/a-1", [0.5, 0.3, 0.4], lr=0.1, net={"depth": 2})
    make_run(tmp_path / "runs/a-2", [0.9, "nan"], lr=0.2, net={"depth": 2}, status="stopped")
    make_run(tmp_path / "runs/a-10", [], lr=0.3, status="failed")
    make_run(tmp_path / "runs/s-1/trials/0001", [0.2], lr=0.4)
    (tmp_path / "runs/s-1/search.json").write_text("{}")
    return tmp_path / "runs"


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["runs", *words])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.usefixtures("runs")
def test_list_shows_each_run_and_the_trials_of_searches(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "list")
    rows = [line.split() for line in out.splitlines()]
    assert code == 0
    assert [row[0] for row in rows] == ["run", "runs/a-1", "runs/a-2", "runs/a-10", "runs/s-1/trials/0001"]
    assert rows[1][1:5] == ["completed", "30", "0.3", "20"] and rows[3][1:3] == ["failed", "0"]


@pytest.mark.usefixtures("runs")
def test_json_has_the_same_facts(capsys: pytest.CaptureFixture[str]) -> None:
    listed = json.loads(run(capsys, "list", "--format", "json")[1])
    assert [each["batches"] for each in listed] == [30, 20, 0, 10]
    assert listed[0]["best"] == {"value": 0.3, "batches": 20}
    shown = json.loads(run(capsys, "show", "runs/a-1", "--format", "json")[1])
    assert shown == listed[0]
    assert shown["hparams"] == {"lr": 0.1, "net.depth": 2}
    assert [each["batches"] for each in shown["checkpoints"]] == [10, 20, 30] and shown["path"] == "runs/a-1"


@pytest.mark.usefixtures("runs")
def test_show_marks_the_checkpoint_of_the_best_validation(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "show", "runs/a-1")[1]
    marked = [line.split()[0] for line in out.splitlines() if line.endswith("best")]
    assert marked == ["runs/a-1/checkpoints/00000020-01234562"]
    assert "validation_loss 0.3 at 20 batches" in out and "net.depth" in out


@pytest.mark.usefixtures("runs")
def test_best_run_is_found_among_all(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "best")
    assert code == 0 and out.startswith("runs/s-1/trials/0001: validation_loss 0.2 after 10 batches")
    assert run(capsys, "best", "--metric", "accuracy")[0] == 1


def test_comparison_shows_only_what_differs_and_writes_curves(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "compare", "runs/a-1", "runs/a-2", "--html", "c.html")
    assert code == 0 and "lr" in out and "net.depth" not in out
    assert "0.3 at 20" in out and "0.9 at 10" in out and "seed" not in out
    update_record(runs / "a-2", seed=4)
    assert re.search(r"^seed +3 +4$", run(capsys, "compare", "runs/a-1", "runs/a-2")[1], re.M)
    page = (runs.parent / "c.html").read_text()
    assert page.count("<polyline") == 2 and "validation_loss" in page


@pytest.mark.usefixtures("runs")
def test_prune_removes_only_ended_runs_without_a_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    assert "would remove runs/a-10: failed" in run(capsys, "prune")[1]
    assert Path("runs/a-10").exists()
    assert "removed runs/a-10" in run(capsys, "prune", "--yes")[1]
    assert not Path("runs/a-10").exists() and Path("runs/a-1").exists()
    assert "nothing to remove" in run(capsys, "prune")[1]


@pytest.mark.usefixtures("runs")
def test_prune_follows_no_link(capsys: pytest.CaptureFixture[str]) -> None:
    Path("runs/a-10").rename("elsewhere")
    Path("runs/a-10").symlink_to(Path("elsewhere").resolve())
    assert "nothing to remove" in run(capsys, "prune", "--yes")[1]
    assert list(Path("elsewhere").iterdir())


@pytest.mark.usefixtures("runs")
def test_run_that_trains_is_not_pruned(capsys: pytest.CaptureFixture[str]) -> None:
    holder = "import fcntl; f = open('runs/a-10/lock', 'a'); fcntl.flock(f, 2); print(1, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline()
        assert "nothing to remove" in run(capsys, "prune", "--yes")[1]
        process.communicate("\n", timeout=200)


@pytest.mark.parametrize(
    "words, message",
    [
        (["show", "nowhere"], "nowhere: is no run directory"),
        (["list", "nowhere"], "nowhere: there is no such folder"),
        (["export", "runs/a-10"], "runs/a-10: has no checkpoint on this machine"),
    ],
)
@pytest.mark.usefixtures("runs")
def test_what_is_not_there_is_one_error(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    code, _, err = run(capsys, *words)
    assert code == 2 and err.startswith(f"ds-train runs: {message}")


def test_listing_runs_does_not_import_torch(runs: Path) -> None:
    code = (
        "import sys; from trial_runtime.train.cli import main; main(['runs', 'list']); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=runs.parent, capture_output=True, timeout=200)
    assert done.returncode == 0, done.stderr


def test_end_of_a_run_names_the_one_to_compare_it_with(runs: Path) -> None:
    assert list(end_of_run(runs / "a-2"))[-1] == "compare: ds-train runs compare runs/a-1 runs/a-2"
    assert not any("compare" in line for line in end_of_run(runs / "a-1"))
