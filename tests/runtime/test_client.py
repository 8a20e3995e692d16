"""Determined's client over run directories: experiments, trials, their best checkpoints, and what is refused."""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from trial_runtime import core, experimental
from trial_runtime._cluster_info import CLUSTER_INFO_FILE, ENV_VAR, ClusterInfo, RunInfo, TrialInfo
from trial_runtime.errors import CheckpointNotFound, InvalidCheckpointException, NotProvidedError
from trial_runtime.experimental import Determined, client
from trial_runtime.experimental.client import CheckpointSortBy, ExperimentState, OrderBy, TrialSortBy, TrialState

pytest.importorskip("determined")


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with a folder ``runs``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(ENV_VAR, raising=False)
    client._determined.cache_clear()
    yield tmp_path / "runs"
    client._determined.cache_clear()


def make_run(
    path: Path,
    number: int,
    metrics: dict[int, dict[str, float]],
    checkpoints: list[int],
    *,
    status: str = "completed",
    experiment: int | None = None,
    smaller_is_better: bool = True,
) -> list[str]:
    """Make a run directory as ds-train leaves it; the names of its checkpoints."""
    path.mkdir(parents=True)
    info = ClusterInfo(
        trial=TrialInfo(number, experiment or number, 1, {"lr": 0.1 * number}, {"name": path.name, "searcher": {}}),
        run=RunInfo(str(path), str(path / "checkpoints"), searcher_metric="loss", smaller_is_better=smaller_is_better),
        slot_ids=[0],
    )
    (path / CLUSTER_INFO_FILE).write_text(info.to_json())
    (path / "run.json").write_text(json.dumps({"id": "x", "number": number, "seed": 1, "status": status}))
    lines = [{"group": "validation", "steps_completed": step, "metrics": values} for step, values in metrics.items()]
    lines += [{"group": "training", "steps_completed": step, "metrics": {"train": step}} for step in metrics]
    (path / "metrics.jsonl").write_text("\n".join(json.dumps(line) for line in lines) + "\n{broken")
    names = []
    for steps in checkpoints:
        context = core._dummy_init(checkpoint_storage=str(path / "checkpoints"))
        with context.checkpoint.store_path({"steps_completed": steps, "note": f"after {steps}"}) as (folder, name):
            (folder / "weights").write_text(f"{path.name}/{steps}")
        names.append(name)
    return names


@pytest.fixture
def single(runs: Path) -> list[str]:
    """A run on its own; losses 3, 1, 1, and a checkpoint without validation."""
    metrics = {1: {"loss": 3.0, "accuracy": 0.5}, 2: {"loss": 1.0, "accuracy": 0.25}, 3: {"loss": 1.0}}
    return make_run(runs / "single-3", 3, metrics, [1, 2, 3, 4])


@pytest.fixture
def search(runs: Path) -> list[list[str]]:
    """A search of three trials, of which larger losses are better; the names of their checkpoints."""
    path = runs / "search-7"
    path.mkdir(parents=True)
    (path / "search.json").write_text(json.dumps({"number": 7, "seed": 1, "digest": "", "status": "running"}))
    facts: list[Any] = [({1: {"loss": 5.0}, 2: {"loss": 4.0}}, [1, 2]), ({1: {"loss": 9.0}}, [1]), ({}, [])]
    return [
        make_run(path / "trials" / f"{index:04d}", index, metrics, checkpoints, experiment=7, smaller_is_better=False)
        for index, (metrics, checkpoints) in enumerate(facts, 1)
    ]


def names(checkpoints: list[Any]) -> list[str]:
    return [checkpoint.uuid for checkpoint in checkpoints]


# Experiments and trials


@pytest.mark.parametrize("given", [3, "3", "single-3", "runs/single-3", Path("runs/single-3")])
def test_a_run_is_an_experiment_with_one_trial(given: Any, single: list[str]) -> None:
    experiment = client.get_experiment(given)
    assert (experiment.id, experiment.name, experiment.state) == (3, "single-3", ExperimentState.COMPLETED)
    (trial,) = experiment.get_trials()
    assert (trial.id, trial.experiment_id, trial.state) == (3, 3, TrialState.COMPLETED)
    assert trial.hparams == {"lr": pytest.approx(0.3)}
    assert client.get_trial(given).id == 3
    assert trial.get_experiment().id == 3
    assert experiment.await_first_trial().id == 3
    assert experiment.wait() is ExperimentState.COMPLETED
    assert len(single) == 4


def test_a_search_is_an_experiment_with_its_trials(search: list[list[str]]) -> None:
    experiment = client.get_experiment(7)
    assert experiment.state is ExperimentState.RUNNING
    assert [trial.id for trial in experiment.list_trials()] == [1, 2, 3]
    assert [trial.id for trial in experiment.iter_trials(TrialSortBy.ID, OrderBy.DESCENDING)] == [3, 2, 1]
    best = experiment.get_trials(TrialSortBy.BEST_VALIDATION_METRIC, OrderBy.DESCENDING)
    assert [trial.id for trial in best] == [2, 1, 3]
    trial = client.get_trial(2)
    assert trial.get_experiment().id == 7
    assert names([trial.top_checkpoint()]) == search[1]


@pytest.mark.usefixtures("search")
def test_what_is_not_there_lists_what_is(single: list[str]) -> None:
    with pytest.raises(ValueError, match=r"no experiment 8.*there: .*search-7, .*single-3"):
        client.get_experiment(8)
    with pytest.raises(ValueError, match=r"no trial 'x'.*there: .*trials/0001, .*single-3"):
        client.get_trial("x")
    make_run(Path("runs/inference-3").absolute(), 3, {}, [])
    assert client.get_experiment(3).name == "single-3"  # the only one with checkpoints
    make_run(Path("runs/other-3").absolute(), 3, {}, [1])
    with pytest.raises(ValueError, match=r"several runs with the number 3: .*other-3, .*single-3\. Give the path"):
        client.get_experiment(3)
    assert len(single) == 4


def test_a_run_of_this_process_is_none_of_the_others(
    runs: Path, single: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_run(runs / "inference-3", 3, {}, [])
    monkeypatch.setenv(ENV_VAR, str(runs / "inference-3" / CLUSTER_INFO_FILE))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert client.get_trial(3).top_checkpoint().uuid == single[1]


@pytest.mark.parametrize(
    ("status", "state"),
    [("completed", "COMPLETED"), ("stopped", "PAUSED"), ("failed", "ERROR"), ("running", "ERROR")],
)
def test_states_are_those_of_the_run(status: str, state: str, runs: Path) -> None:
    make_run(runs / "a-1", 1, {}, [], status=status)
    assert client.get_trial(1).state.name == state
    assert client.get_experiment(1).state.name == state


def test_a_run_that_is_training_runs(runs: Path) -> None:
    from trial_runtime.train.run.run_directory import lock

    make_run(runs / "a-1", 1, {}, [], status="running")
    with lock(runs / "a-1"):
        assert client.get_trial(1).state is TrialState.RUNNING
    assert client.get_trial(1).state is TrialState.ERROR


@pytest.mark.usefixtures("single", "search")
def test_experiments_are_listed() -> None:
    def ids(**options: Any) -> list[int]:
        return [experiment.id for experiment in client.list_experiments(**options)]

    assert ids() == [3, 7]
    assert ids(order_by=OrderBy.DESCENDING) == [7, 3]
    assert ids(states=[ExperimentState.COMPLETED]) == [3]
    assert ids(name="ing", experiment_ids=[3]) == [3]


# Checkpoints


def test_the_best_checkpoint_is_that_of_the_searchers_metric(single: list[str]) -> None:
    experiment = client.get_experiment(3)
    assert experiment.top_checkpoint().uuid == single[1]  # of equal ones the earlier
    assert experiment.top_checkpoint("accuracy").uuid == single[0]
    assert experiment.top_checkpoint("accuracy", smaller_is_better=True).uuid == single[1]
    with pytest.raises(AssertionError, match="No checkpoints found for experiment 3"):
        experiment.top_checkpoint("unknown")
    with pytest.raises(ValueError, match="No checkpoints found for criteria"):
        client.get_trial(3).top_checkpoint("unknown")


def test_checkpoints_are_listed_in_any_order(single: list[str]) -> None:
    trial = client.get_trial(3)
    one, two, three, four = single
    assert names(trial.list_checkpoints()) == [two, three, one]
    assert names(trial.get_checkpoints("loss", OrderBy.DESC)) == [one, two, three]
    assert names(trial.list_checkpoints(CheckpointSortBy.BATCH_NUMBER, OrderBy.DESC, 2)) == [four, three]
    assert names(trial.list_checkpoints(CheckpointSortBy.UUID, OrderBy.ASC)) == single
    assert names(trial.list_checkpoints(CheckpointSortBy.SEARCHER_METRIC, OrderBy.ASC)) == [two, three, one]
    with pytest.raises(AssertionError, match="either both set, or neither"):
        trial.list_checkpoints(sort_by="loss")
    with pytest.raises(ValueError, match="CheckpointSortBy or str"):
        trial.list_checkpoints(sort_by=3, order_by=OrderBy.ASC)  # type: ignore[arg-type]


def test_a_checkpoint_is_selected_in_one_way(single: list[str]) -> None:
    trial = client.get_trial(3)
    assert trial.select_checkpoint(latest=True).uuid == single[3]
    assert trial.select_checkpoint(best=True).uuid == single[1]
    assert trial.select_checkpoint(uuid=single[2]).uuid == single[2]
    assert trial.select_checkpoint(best=True, sort_by="accuracy", smaller_is_better=False).uuid == single[0]
    for wrong in ({}, {"latest": True, "best": True}, {"best": True, "sort_by": "loss"},
                  {"latest": True, "sort_by": "loss", "smaller_is_better": True}):  # fmt: skip
        with pytest.raises(AssertionError):
            trial.select_checkpoint(**wrong)
    with pytest.raises(ValueError, match="No checkpoints found"):
        trial.select_checkpoint(uuid="x")


def test_the_best_checkpoints_of_a_search_are_of_different_trials(search: list[list[str]]) -> None:
    experiment = client.get_experiment("search-7")
    assert experiment.top_checkpoint().uuid == search[1][0]
    assert names(experiment.list_checkpoints()) == [search[1][0], search[0][0], search[0][1]]
    assert names(experiment.top_n_checkpoints(5)) == [search[1][0], search[0][0]]
    assert names(experiment.top_n_checkpoints(1)) == [search[1][0]]
    assert names(experiment.top_n_checkpoints(2, "loss", smaller_is_better=True)) == [search[0][1], search[1][0]]


def test_a_checkpoint_shows_what_it_is(single: list[str]) -> None:
    checkpoint = client.get_trial(3).top_checkpoint()
    assert checkpoint.state is client.CheckpointState.COMPLETED
    assert checkpoint.metadata["steps_completed"] == 2 and checkpoint.metadata["note"] == "after 2"
    assert set(checkpoint.resources) == {"weights", "metadata.json"}
    training = checkpoint.training
    assert training is not None and (training.trial_id, training.experiment_id) == (3, 3)
    assert training.validation_metrics == {"avgMetrics": {"loss": 1.0, "accuracy": 0.25}}
    assert [one.metrics for one in checkpoint.get_metrics("validation")] == [{"loss": 1.0, "accuracy": 0.25}]
    checkpoint.add_metadata({"score": 5, "tag": "x"})
    checkpoint.remove_metadata(["tag"])
    assert client.get_checkpoint(single[1]).metadata["score"] == 5
    assert "tag" not in checkpoint.metadata
    checkpoint.write_metadata_file("facts.json")
    assert json.loads(Path("facts.json").read_text())["score"] == 5
    with core._dummy_init().checkpoint.restore_path(checkpoint.download()) as path:  # it is whole
        assert (path / "weights").read_text() == "single-3/2"
    checkpoint.delete()
    assert single[1] not in names(client.get_trial(3).list_checkpoints())
    with pytest.raises(CheckpointNotFound):
        client.get_checkpoint(single[1])


def test_a_download_is_the_folder_itself_or_a_copy_that_is_reused(single: list[str]) -> None:
    trial = client.get_trial(3)
    best, other = trial.top_checkpoint(), trial.select_checkpoint(latest=True)
    assert best.download() == str(Path("runs/single-3/checkpoints").absolute() / single[1])
    assert best.download("copy", mode=client.DownloadMode.MASTER) == "copy"
    (Path("copy") / "mine").write_text("mine")
    written = (Path("copy") / "weights").stat().st_mtime_ns
    assert best.download("copy") == "copy"  # the second start of a script
    assert (Path("copy") / "weights").stat().st_mtime_ns == written
    other.download("copy")
    assert (Path("copy") / "weights").read_text() == "single-3/4"
    assert (Path("copy") / "mine").read_text() == "mine"
    (Path("copy") / "manifest.json").unlink()  # a copy that was interrupted
    (Path("copy") / "weights").write_text("half")
    other.download("copy")
    assert (Path("copy") / "weights").read_text() == "single-3/4"


def test_a_run_that_was_moved_has_its_checkpoints(single: list[str], runs: Path) -> None:
    (runs / "single-3").rename(runs.parent / "moved")
    assert client.get_trial("moved").top_checkpoint().download().endswith(f"moved/checkpoints/{single[1]}")


# Metrics and logs


@pytest.mark.usefixtures("single")
def test_metrics_come_in_the_order_of_their_reports() -> None:
    trial = client.get_trial(3)
    assert [(one.steps_completed, one.total_batches, one.metrics) for one in trial.iter_metrics("training")] == [
        (step, step, {"train": step}) for step in (1, 2, 3)
    ]
    (first, *_) = client.stream_trials_validation_metrics([3])
    assert isinstance(first, client.ValidationMetrics) and (first.trial_id, first.group) == (3, "validation")
    assert len(list(client.iter_trials_metrics([3, 3], "training"))) == 6
    assert len(list(client.stream_trials_metrics([3], "none"))) == 0
    assert all(isinstance(one, client.TrainingMetrics) for one in client.stream_trials_training_metrics([3]))
    assert client.TrainingMetrics(total_batches=4, trial_id=1, trial_run_id=1, end_time=None, metrics={}) == (
        client.TrainingMetrics(steps_completed=4, trial_id=1, trial_run_id=1, end_time=None, metrics={})
    )
    assert trial.summary_metrics["validation_metrics"]["loss"] == {"last": 1.0}


@pytest.mark.usefixtures("single")
def test_logs_are_the_lines_of_the_ranks(runs: Path) -> None:
    (runs / "single-3" / "log").mkdir()
    for rank in (0, 1):
        (runs / "single-3" / "log" / f"rank_{rank}.log").write_text(f"a {rank}\nb {rank}\n")
    trial = client.get_trial(3)
    assert list(trial.logs()) == ["a 0\n", "b 0\n", "a 1\n", "b 1\n"]
    assert list(trial.iter_logs(tail=1)) == ["b 1\n"]
    assert list(trial.logs(head=1, rank_ids=[1])) == ["a 1\n"]
    assert list(trial.logs(search_text="b")) == ["b 0\n", "b 1\n"]


# Determined's own spellings


def test_login_comes_first_and_needs_no_master(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    client.login(master="http://localhost:8080", user="determined", password="secret")
    assert "There is no connection to http://localhost:8080" in caplog.text and "secret" not in caplog.text
    with pytest.raises(ValueError, match=r"You can only call login\(\) once, before any other calls"):
        client.login()
    client.logout()


@pytest.mark.usefixtures("single")
def test_a_determined_object_has_the_same_methods() -> None:
    determined = Determined(master="m", user="u", password="p", cert_path="c", cert_name="n", noverify=True)
    assert determined.get_experiment(3).id == determined.get_trial(3).id == 3
    assert len(determined.list_experiments()) == 1
    assert len(list(determined.stream_trials_metrics([3], "training"))) == 3


REFUSED = {
    "create_experiment": "ds-train CONFIG.yaml DIR",
    "get_model": "ds-train --latest-checkpoint PATH",
    "create_model": "no model registry here",
    "list_models": "no model registry here",
    "get_user_by_name": "no users, workspaces or projects",
    "create_workspace": "no users, workspaces or projects",
    "whoami": "no users, workspaces or projects",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_a_master_is_refused_at_the_call(name: str) -> None:
    for holder, owner in ((client, ""), (Determined(), "Determined.")):
        message = f"determined.experimental.client.{owner}{name} is not provided: .*{re.escape(REFUSED[name])}"
        with pytest.raises(NotProvidedError, match=message):
            getattr(holder, name)("a", b=1)


def test_control_of_a_run_is_refused_with_what_to_do(single: list[str]) -> None:
    assert single
    for act in (client.get_experiment(3).kill, client.get_experiment(3).pause, client.get_trial(3).kill):
        with pytest.raises(NotProvidedError, match="Ctrl-C or SIGTERM, and resume it with ds-train --run-dir"):
            act()
    with pytest.raises(NotProvidedError, match="no model registry"):
        experimental.Model()


SERVED = [
    "experimental", "experimental.client", "common.experimental", "common.experimental.checkpoint",
    "common.experimental.determined", "common.experimental.experiment", "common.experimental.metrics",
    "common.experimental.model", "common.experimental.trial",
]  # fmt: skip


@pytest.mark.parametrize("module", SERVED)
def test_every_name_that_a_module_had_is_there_and_classes_have_their_methods(module: str) -> None:
    ours, theirs = (importlib.import_module(f"{name}.{module}") for name in ("trial_runtime", "determined"))
    for name, value in vars(theirs).items():
        own = str(getattr(value, "__module__", "")).startswith("determined")
        if name.startswith("_") or not own or name in ("C", "create", "test_one_batch", "LogLevel"):
            continue
        mine: Any = getattr(ours, name)
        enumeration: Any = value
        if name in ("Determined", "Experiment", "Trial", "Checkpoint"):
            methods = [method for method in vars(value) if method[0] != "_" and callable(getattr(value, method))]
            assert [method for method in methods if not hasattr(mine, method)] == []
        elif inspect.isclass(value) and hasattr(value, "__members__") and not name.startswith("Model"):
            assert {one.name: str(getattr(one.value, "value", one.value)) for one in enumeration} == {
                one.name: one.value for one in mine
            }


@pytest.mark.parametrize("uuid", ["", ".", "..", "\0", "no\nsuch", "../.."])
def test_a_name_that_is_none_of_a_checkpoint_removes_nothing(uuid: str, runs: Path, single: list[str]) -> None:
    files = {path for path in runs.rglob("*") if path.is_file()}
    with pytest.raises((CheckpointNotFound, InvalidCheckpointException)):
        client.get_checkpoint(uuid).delete()
    assert single and {path for path in runs.rglob("*") if path.is_file()} == files


def test_a_folder_that_is_no_checkpoint_is_not_removed(runs: Path) -> None:
    (runs.parent / "data").mkdir()
    (runs.parent / "data/file").write_text("mine")
    with pytest.raises(InvalidCheckpointException, match=r"data has no manifest\.json: it is no checkpoint"):
        client.get_checkpoint("data").delete()
    context = core._dummy_init(checkpoint_storage=str(runs.parent / "checkpoints"))
    with pytest.raises(InvalidCheckpointException, match=r"data has no manifest\.json"):
        context.checkpoint.delete("data")
    assert (runs.parent / "data/file").is_file()


def test_a_link_out_of_a_checkpoint_is_not_copied(runs: Path, single: list[str]) -> None:
    (runs.parent / "key").write_text("secret")
    checkpoint = client.get_checkpoint(str(runs / "single-3/checkpoints" / single[0]))
    (Path(checkpoint.download()) / "more").symlink_to(runs.parent / "key")
    with pytest.raises(InvalidCheckpointException, match=r"more: a link out of the checkpoint, to .*key"):
        checkpoint.download("copy")
    assert not Path("copy").exists()
    with pytest.raises(InvalidCheckpointException, match="more: a link out of the checkpoint"):
        core._dummy_init(checkpoint_storage=str(runs)).checkpoint.download(str(checkpoint._path), "copy")


@pytest.mark.parametrize(
    "manifest",
    ["", "[]", "{}", '{"files": 5}', '{"files": {"../x": {}}}', '{"files": {"a\\u0000": {}}}', "[" * 100_000],
)
def test_a_folder_with_a_manifest_that_is_none_is_not_emptied(manifest: str, runs: Path, single: list[str]) -> None:
    folder = runs.parent / "copy"
    folder.mkdir()
    (folder / "manifest.json").write_text(manifest)
    with pytest.raises(InvalidCheckpointException, match="copy is no copy of a checkpoint"):
        client.get_checkpoint(str(runs / "single-3/checkpoints" / single[0])).download(folder)
    assert [path.name for path in folder.iterdir()] == ["manifest.json"]


def test_strange_files_beside_a_run_end_no_listing(runs: Path, single: list[str]) -> None:
    run = runs / "single-3"
    (run / "log").mkdir()
    for name in ("rank_x.log", "rank_0.log", "rank_.log", f"rank_{9 * 5000}.log"):
        (run / "log" / name).write_text(f"{name}\n")
    (run / "log/rank_1.log").symlink_to("/dev/zero")
    damaged = run / "checkpoints/00000009-00000000"
    damaged.mkdir()
    (damaged / "manifest.json").write_text('{"progress": {"batches": Infinity}}')
    for number, record in enumerate(['{"number": "x"}', "[" * 100_000, "5"]):
        (runs / f"s-{number}").mkdir()
        (runs / f"s-{number}/search.json").write_text(record)
    assert list(client.get_trial("single-3").logs()) == ["rank_0.log\n", "rank_45000.log\n"]
    assert names(client.get_trial("single-3").list_checkpoints(CheckpointSortBy.BATCH_NUMBER, OrderBy.ASC)) == single
    assert {experiment.id for experiment in client.list_experiments()} == {0, 3}


@pytest.mark.parametrize("name", ["../../x", "a\0b", "a\nb", "", "-rf"])
def test_a_model_of_any_name_is_refused(name: str) -> None:
    for call in (client.create_model, client.get_model):
        with pytest.raises(NotProvidedError):
            call(name)


@pytest.mark.parametrize("given", ["../..", "a\nb", "\0", "", "²", "9" * 5000])
def test_a_strange_name_of_an_experiment_is_one_that_is_not_there(given: str, single: list[str]) -> None:
    assert single
    for find in (client.get_experiment, client.get_trial):
        with pytest.raises(ValueError):
            find(given)
