"""Run directories from somebody else: resumed, listed, compared, pruned and read by the client. An error that names the
file, or no effect; nothing outside of the directory is written or removed, nothing reaches a terminal raw."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from test_train_runs import make_run
from trial_runtime._cluster_info import CLUSTER_INFO_FILE, ClusterInfo
from trial_runtime._storage.urls import CheckpointStorage
from trial_runtime.train.cli import main
from trial_runtime.train.config.errors import ConfigError
from trial_runtime.train.run.run_directory import newest_directory, open_run
from trial_runtime.train.search.retention import remove_superseded_of_trials

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
RECORD: dict[str, Any] = {"id": "ab", "number": 1, "seed": 3, "status": "stopped"}
DEEP = "[" * 100_000
ODD_RECORDS = [
    "", "[]", "null", "\0", DEEP, '{"id": "ab"}', json.dumps({**RECORD, "seed": float("inf")}),
    *(json.dumps({**RECORD, **change}) for change in (
        {"id": "../../victim"}, {"id": "a/b"}, {"id": ""}, {"id": "a\0"}, {"id": ["x"]}, {"number": "1"},
        {"number": None}, {"seed": "x"}, {"seed": True}, {"seed": 1.5},
    )),
]  # fmt: skip
ODD_INFOS: list[tuple[tuple[str, ...], Any]] = [
    (("run",), "x"), (("run",), None), (("trial",), []), (("run", "directory"), 5), (("run", "searcher_metric"), ["a"]),
    (("run", "checkpoint_directory"), "a\0b"), (("run", "fit"), [1]), (("run", "fit", "max_length"), {"value": "x"}),
    (("run", "fit", "max_length"), {"value": 1, "unit": "miles"}), (("run", "save_trial_best"), "all"),
    (("trial", "hparams"), [1]), (("trial", "experiment_id"), {}), (("slot_ids",), None), (("more",), 1),
]  # fmt: skip


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


@pytest.mark.parametrize("text", ODD_RECORDS, ids=range(len(ODD_RECORDS)))
def test_a_record_that_no_run_wrote_is_one_error_on_a_resume(text: str, here: Path) -> None:
    make_run(here / "run", [0.5])
    (here / "run/run.json").write_text(text)
    with pytest.raises(ConfigError, match=r"run\.json: cannot be read"):
        open_run(here / "run", "", None)


@pytest.mark.parametrize("name", ["metrics.jsonl", "lock", "log", "log/rank_0.log", "tensorboard/x", "checkpoints"])
def test_a_run_with_a_link_is_not_continued(name: str, here: Path) -> None:
    victim = here / "victim"
    victim.mkdir()
    make_run(here / "run", [])
    link = here / "run" / name
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(victim)
    with pytest.raises(ConfigError, match=rf"{name}: is a link to .*victim"):
        open_run(here / "run", "", None)
    assert os.listdir(victim) == []  # noqa: PTH208


@pytest.mark.usefixtures("here")
def test_resume_chooses_no_link_to_a_run_elsewhere() -> None:
    own, other = make_run(Path("runs/a-1"), []), make_run(Path("elsewhere/a-7"), [])
    Path("runs/a-9").symlink_to(other.resolve())
    assert newest_directory("a") == own


@pytest.mark.parametrize(("path", "value"), ODD_INFOS, ids=range(len(ODD_INFOS)))
def test_a_description_that_no_run_wrote_is_taken_for_none(path: tuple[str, ...], value: Any, here: Path) -> None:
    file = make_run(here / "run", [0.5]) / CLUSTER_INFO_FILE
    fields = json.loads(file.read_text())
    inner = fields
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    with pytest.raises(ValueError, match="is no description of a run"):
        ClusterInfo.from_json(json.dumps(fields))
    file.write_text(json.dumps(fields))
    assert main(["runs", "list", "."]) == 0


def test_checkpoints_of_a_search_are_removed_where_the_config_keeps_them_only(here: Path) -> None:
    victim = make_run(here / "victim", [0.4, 0.3])
    trial = make_run(here / "s-1/trials/0001", [0.2, 0.1])
    info = json.loads((trial / CLUSTER_INFO_FILE).read_text())
    info["run"] |= {"checkpoint_directory": str(victim / "checkpoints"), "storage": f"file://{victim}"}
    (trial / CLUSTER_INFO_FILE).write_text(json.dumps(info))
    storage = CheckpointStorage(None, None, save_experiment_best=0, save_trial_best=0, save_trial_latest=1)
    assert remove_superseded_of_trials([trial], storage) == 1
    assert len(list((victim / "checkpoints").iterdir())) == 2
    assert len(list((trial / "checkpoints").iterdir())) == 1


def test_a_folder_of_strange_runs_is_listed_shown_and_compared(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "a\x1b[31m\u202e<img src=x onerror=alert(1)>"
    nested: dict[str, Any] = {"x": 1}
    for _ in range(300):
        nested = {"x": nested}
    strange = make_run(
        here / "runs" / f"{name}-1", [0.5, 1e308], status="done\x1b]0;x\x07", **{name: "<script>\x1b[2J", "net": nested}
    )
    other = make_run(here / "runs/b-2", [0.4], **{name: "1"})
    for run in (strange, other):
        text = (run / CLUSTER_INFO_FILE).read_text().replace("validation_loss", "loss\\u001b[5m<b>")
        (run / CLUSTER_INFO_FILE).write_text(text)
    odd: list[dict[str, Any]] = [
        {"steps_completed": 10**400}, {"steps_completed": float("inf")}, {"steps_completed": -5}, {"metrics": "x"},
        {"metrics": {"loss\x1b[5m<b>": 10**400}}, {"metrics": {"loss\x1b[5m<b>": -(10**400), "y": [1]}},
    ]  # fmt: skip
    report: dict[str, Any] = {
        "group": "validation",
        "steps_completed": 30,
        "metrics": {"loss\x1b[5m<b>": 0.1, "<b>\x1b": 2.0},
    }
    lines = [DEEP, "[]", "5", *(json.dumps({**report, **change}) for change in odd), json.dumps(report)]
    (strange / "metrics.jsonl").write_text("\n".join(lines))
    os.mkfifo(here / "runs/b-2/checkpoints/pipe")
    (here / "runs/pipe-1").mkdir()
    os.mkfifo(here / "runs/pipe-1/run.json")
    make_run(here / "runs/zero-1", [])
    (here / "runs/zero-1/metrics.jsonl").unlink()
    (here / "runs/zero-1/metrics.jsonl").symlink_to("/dev/zero")
    paths = [str(strange.relative_to(here)), "runs/b-2"]
    compare = ["compare", *paths, "--html", "page.html"]
    best = ["best", "--metric", "loss\x1b[5m<b>"]
    commands = (["list"], ["show", paths[0]], best, compare, ["prune"], ["show", "no\x1b"])
    codes = [main(["runs", *command]) for command in commands]
    assert codes == [0, 0, 0, 0, 0, 2]
    out, err = capsys.readouterr()
    assert r"\x1b" in out and r"\x1b" in err
    assert not CONTROL.search(out + err)
    page = (here / "page.html").read_text()
    assert "<img src=x" not in page and "<script>\x1b" not in page and "<b>" not in page
    assert "&lt;img src=x" in page


def test_a_run_that_was_copied_has_its_own_checkpoints_and_is_not_pruned(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(here / "runs/a-1", [0.5]).rename(here / "runs/moved-1")
    make_run(here / "other/b-1", [])
    (here / "runs/s-1").mkdir()
    (here / "runs/s-1/search.json").write_text("{}")
    (here / "runs/s-1/trials").symlink_to(here / "other")
    assert main(["runs", "prune", "--yes"]) == 0
    assert "nothing to remove" in capsys.readouterr().out
    assert (here / "runs/moved-1/checkpoints").is_dir() and (here / "other/b-1/run.json").is_file()
