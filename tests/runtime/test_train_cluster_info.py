"""get_cluster_info() and the run directory behind it."""

import json
from pathlib import Path

import pytest
from trial_runtime import get_cluster_info
from trial_runtime._cluster_info import ENV_VAR, ClusterInfo, FitDefaults, Length, RunInfo, TrialInfo, newest_checkpoint
from trial_runtime.train.config.errors import ConfigError
from trial_runtime.train.config.run_plan import make_plan
from trial_runtime.train.run.run_directory import describe, lock, open_run


def described(directory: Path) -> ClusterInfo:
    return ClusterInfo(
        trial=TrialInfo(3, 3, 17, {"lr": 0.1, "nested": {"x": [1]}}, {"data": {"path": "d"}}),
        run=RunInfo(
            str(directory),
            str(directory / "checkpoints"),
            fit=FitDefaults(max_length=Length(2, "epochs"), checkpoint_policy="all"),
        ),
        slot_ids=[0, 1],
        latest_checkpoint="/given",
    )


def commit(directory: Path, name: str) -> None:
    (directory / "checkpoints" / name).mkdir(parents=True)
    (directory / "checkpoints" / "latest").write_text(name + "\n")


def test_there_is_none_outside_of_ds_train(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENV_VAR, raising=False)

    assert get_cluster_info() is None


@pytest.mark.parametrize("as_file", [True, False])
def test_it_comes_back_as_it_was_written(as_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = described(tmp_path)
    (tmp_path / "info.json").write_text(info.to_json())
    monkeypatch.setenv(ENV_VAR, str(tmp_path / "info.json") if as_file else info.to_json())

    found = get_cluster_info()

    assert found == info
    assert found is get_cluster_info()
    assert found is not None
    assert found.trial.hparams == {"lr": 0.1, "nested": {"x": [1]}}
    assert (found.trial.trial_seed, found.trial.trial_id, found.slot_ids) == (17, 3, [0, 1])
    assert found.user_data == {"path": "d"}
    assert (found.task_type, found.container_addrs, found.container_rank) == ("TRIAL", ["127.0.0.1"], 0)


def test_the_gpus_are_those_that_torch_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trial_runtime.gpu.get_gpu_uuids", lambda: ["GPU-1", "GPU-2"])

    assert described(tmp_path).gpu_uuids == ["GPU-1", "GPU-2"]


def test_the_newest_checkpoint_is_the_one_that_latest_names(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    assert newest_checkpoint(checkpoints) is None

    commit(tmp_path, "first")
    commit(tmp_path, "second")

    assert newest_checkpoint(checkpoints) == str(checkpoints / "second")
    (checkpoints / "second").rmdir()  # a name without its checkpoint names none
    assert newest_checkpoint(checkpoints) is None


def test_of_the_checkpoints_left_the_last_is_the_newest(tmp_path: Path) -> None:
    for name in ("00000008-000000ab", "00000010-000000cd", ".tmp-00000012-000000ef"):
        (tmp_path / name).mkdir()
    (tmp_path / ".tmp-00000012-000000ef" / "manifest.json").touch()
    (tmp_path / "latest").write_text("00000012-000000ef\n")
    assert newest_checkpoint(tmp_path) is None

    for name in ("00000008-000000ab", "00000010-000000cd"):
        (tmp_path / name / "manifest.json").touch()
    assert newest_checkpoint(tmp_path) == str(tmp_path / "00000010-000000cd")


def test_the_runs_own_checkpoint_comes_before_the_given_one(tmp_path: Path) -> None:
    run, _ = open_run(tmp_path / "run", "x", 1)
    plan = make_plan({"entrypoint": "m:C", "searcher": {"max_length": 1}}, "c.yaml", tmp_path)

    assert describe(plan, run, "/given").latest_checkpoint == "/given"
    commit(run.path, "first")
    assert describe(plan, run, "/given").latest_checkpoint == str(run.path / "checkpoints" / "first")


def test_runs_that_share_a_storage_have_folders_of_their_own(tmp_path: Path) -> None:
    document = {"entrypoint": "m:C", "searcher": {"max_length": 1}, "checkpoint_storage": {"host_path": "shared"}}
    plan = make_plan(document, "c.yaml", tmp_path)

    folders = {
        describe(plan, open_run(tmp_path / place / "x-1", "x", 1)[0], None).run.checkpoint_directory for place in "ab"
    }

    assert len(folders) == 2
    assert {Path(folder).parent for folder in folders} == {tmp_path / "shared"}


def test_new_runs_are_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "my-exp-7").mkdir(parents=True)

    run, continued = open_run(None, "my exp", 5)
    other, _ = open_run(None, "my exp", None)

    assert (run.path, run.number, run.seed, continued) == (tmp_path / "runs" / "my-exp-8", 8, 5, False)
    assert (other.path.name, other.number) == ("my-exp-9", 9)
    assert run.id != other.id


@pytest.mark.parametrize("named", [None, "out"])
def test_a_run_directory_ignores_itself_in_git(
    named: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()

    run, _ = open_run(None if named is None else tmp_path / named, "x", 1)

    assert (run.path / ".gitignore").read_text() == "*\n"


def test_run_whose_start_was_killed_before_its_record_is_started_anew(tmp_path: Path) -> None:
    for left in (".gitignore", "lock", ".run.json.tmp"):
        (tmp_path / left).write_text("*\n")
    run, continued = open_run(tmp_path, "x", 1)
    assert not continued and (run.path / "run.json").is_file()


def test_a_run_directory_is_continued_with_its_own_seed_and_id(tmp_path: Path) -> None:
    first, continued = open_run(tmp_path / "new" / "run", "x", None)
    again, continued_again = open_run(tmp_path / "new" / "run", "x", None)

    assert (continued, continued_again) == (False, True)
    assert again == first


def test_a_folder_that_is_no_run_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()

    with pytest.raises(ConfigError, match="not a run directory"):
        open_run(tmp_path, "x", None)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_damaged_record_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"id": "x"}))

    with pytest.raises(ConfigError, match=r"run\.json: cannot be read"):
        open_run(tmp_path, "x", None)


def test_a_run_directory_has_one_user_at_a_time(tmp_path: Path) -> None:
    with lock(tmp_path), pytest.raises(ConfigError, match=r"the process \d+ is training there"):
        lock(tmp_path)

    lock(tmp_path).close()
