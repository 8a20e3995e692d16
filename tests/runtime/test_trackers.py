"""Experiment trackers: named in a config, fed from a run, continued after a restart, and never a reason to stop."""

from __future__ import annotations

import json
import logging
import signal
import threading
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import toys
from trial_runtime import core
from trial_runtime._cluster_info import ENV_VAR, ClusterInfo, RunInfo, TrialInfo
from trial_runtime._redaction import SECRETS_VARIABLE
from trial_runtime._run_record import read_record, update_record
from trial_runtime.pytorch import Batch
from trial_runtime.pytorch._loop.settings import RunSettings
from trial_runtime.pytorch._reporting import trackers
from trial_runtime.pytorch._reporting.trackers import TrackedRun, make_trackers, tracking
from trial_runtime.train.cli import main
from trial_runtime.train.config.errors import Problems, Section
from trial_runtime.train.config.trackers import read_trackers

HPARAMS = {"lr": 0.1, "net": {"depth": 2}, "api_key": "hush"}


def describe(folder: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Be a rank of a run in ``folder`` whose config names these trackers."""
    folder.mkdir(exist_ok=True)
    run = RunInfo(str(folder), str(folder / "checkpoints"), name="digits", log_with=list(names))
    monkeypatch.setenv(ENV_VAR, ClusterInfo(TrialInfo(1, 1, 3, HPARAMS, {}), run, [0], task_id="ab12").to_json())
    monkeypatch.delenv(SECRETS_VARIABLE, raising=False)


class FakeTracker:
    """Keeps what it is given; ``made`` has all of them."""

    made: list[FakeTracker]

    def __init__(self, run: TrackedRun) -> None:
        self.run, self.id = run, run.id or "id-1"
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.ending = ""
        self.made.append(self)

    def log(self, batches: int, metrics: dict[str, float]) -> None:
        self.logged.append((batches, metrics))

    def finish(self, ending: trackers.Ending) -> None:
        self.ending = ending


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeTracker]:
    monkeypatch.setattr(FakeTracker, "made", [], raising=False)
    monkeypatch.setitem(trackers._TRACKERS, "mlflow", FakeTracker)
    monkeypatch.setattr(core.PreemptContext, "acknowledged", 0)  # another test of this process may have left
    return FakeTracker


# The config


@pytest.mark.parametrize(
    ("value", "names"),
    [(None, ()), ("tensorboard", ("tensorboard",)), (["tensorboard"], ("tensorboard",)), ("a, a", ("a",))],
)
def test_trackers_are_a_list_or_names_with_commas(
    value: object, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trial_runtime.train.config.trackers.TRACKERS", ("tensorboard", "a"))
    assert read_trackers(Section({"log_with": value}, "", Problems())) == names


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            "mlfow",
            "log_with: there is no tracker 'mlfow'; write some of tensorboard, trackio, mlflow, wandb (did you mea",
        ),
        ("wandb", "log_with: not installed: wandb; run pip install wandb"),
        ("3", "log_with: 3 is not allowed: write a list of tensorboard, trackio, mlflow, wandb"),
    ],
)
def test_tracker_that_cannot_be_used_is_an_error_before_the_start(
    value: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder_of_offline_runs = SimpleNamespace(origin=None)
    monkeypatch.setattr("trial_runtime.train.config.trackers.find_spec", lambda _: folder_of_offline_runs)
    monkeypatch.setattr("trial_runtime.train.run.prepare.missing_runtime", lambda: "")
    Path("c.yaml").write_text("entrypoint: m:T\nsearcher: {name: single, max_length: 3}\n")
    option = ["--config", "log_with=3"] if value == "3" else ["--log-with", value]

    assert main(["c.yaml", *option]) == 2

    assert message in capsys.readouterr().err
    assert not Path("runs").exists()


# A training


def test_training_is_sent_to_a_tracker_and_continues_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: type[FakeTracker]
) -> None:
    describe(tmp_path / "digits-1", monkeypatch, "tensorboard", "mlflow")
    update_record(tmp_path / "digits-1", id="ab12", status="running")

    for batches in (4, 6):
        toys.fit(toys.SimpleDS, max_length=Batch(batches), reporting_period=Batch(2))

    first, second = fake.made
    assert (first.run.project, first.run.name, first.run.unique_name) == ("digits", "digits-1", "digits-1-ab12")
    assert (first.run.id, second.run.id) == (None, "id-1")
    assert read_record(tmp_path / "digits-1") == {"id": "ab12", "status": "running", "trackers": {"mlflow": "id-1"}}
    assert [batches for batches, _ in first.logged] == [2, 4, 4]
    assert {"loss", "epochs"} <= first.logged[0][1].keys() and "validation_loss" in first.logged[-1][1]
    assert not any("batches" in metrics for _, metrics in first.logged)  # the step shows them
    assert first.ending == second.ending == "finished"


def test_secrets_are_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: type[FakeTracker]) -> None:
    describe(tmp_path, monkeypatch, "mlflow")
    with tracking(make_trackers(RunSettings.collect(None, None, None))):
        pass
    assert fake.made[0].run.hparams == {**HPARAMS, "api_key": "<masked>"}


def test_training_that_fails_is_shown_as_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: type[FakeTracker]
) -> None:
    class Failing(toys.SimpleDS):
        def evaluate_batch(self, dataloader_iter: Any) -> Any:  # type: ignore[override]
            raise RuntimeError(f"it broke at {dataloader_iter}")

    describe(tmp_path, monkeypatch, "mlflow")
    with pytest.raises(RuntimeError, match="it broke"):
        toys.fit(Failing, max_length=Batch(1))
    assert fake.made[0].ending == "failed"


def test_programs_without_a_trial_are_tracked_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: type[FakeTracker]
) -> None:
    describe(tmp_path, monkeypatch, "mlflow")
    with core.init() as context:
        context.train.report_training_metrics(2, {"loss": 0.5})
        context.train.report_validation_metrics(2, {"loss": 0.25})
        context.train.report_metrics("test", 2, {"loss": 0.125, "text": "no number"})
    assert fake.made[0].logged == [(2, {"loss": 0.5}), (2, {"val_loss": 0.25}), (2, {"test_loss": 0.125})]
    assert fake.made[0].ending == "finished"


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (KeyboardInterrupt(), "stopped"),
        (SystemExit(128 + signal.SIGTERM), "stopped"),
        (SystemExit(1), "failed"),
        (ValueError(), "failed"),
        (SystemExit(0), "finished"),
    ],
)
def test_run_that_a_signal_ended_is_stopped(
    error: BaseException, ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: type[FakeTracker]
) -> None:
    describe(tmp_path, monkeypatch, "mlflow")
    with pytest.raises(type(error)), tracking(make_trackers(RunSettings.collect(None, None, None))):
        raise error
    assert fake.made[0].ending == ending


def test_program_that_saved_and_left_for_a_signal_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: type[FakeTracker]
) -> None:
    describe(tmp_path, monkeypatch, "mlflow")
    monkeypatch.setattr(core.PreemptContext, "acknowledged", signal.SIGTERM)
    with core.init() as context:
        context.train.report_training_metrics(2, {"loss": 0.5})
    assert fake.made[0].ending == "stopped"


@pytest.mark.parametrize("ending, status", [("finished", "FINISHED"), ("failed", "FAILED"), ("stopped", "KILLED")])
def test_mlflow_shows_how_a_run_ended(ending: trackers.Ending, status: str) -> None:
    tracker = object.__new__(trackers.MLflowTracker)
    ended: list[tuple[str, str]] = []
    tracker.id, tracker._client = "id-1", SimpleNamespace(set_terminated=lambda *end: ended.append(end))
    tracker.finish(ending)
    assert ended == [("id-1", status)]


@pytest.mark.parametrize("broken", ["__init__", "log", "finish"])
def test_tracker_that_fails_is_one_warning_and_training_continues(
    broken: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fake: type[FakeTracker],
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: object) -> None:
        raise ConnectionError("the server is away\nand more")

    monkeypatch.setattr(fake, broken, fail)
    describe(tmp_path, monkeypatch, "mlflow")
    sinks = make_trackers(RunSettings.collect(None, None, None))
    with caplog.at_level(logging.WARNING), tracking(sinks):
        for batches in (1, 2, 3):
            sinks[0].on_training_metrics(batches, {"loss": 0.5}, [])
    warnings = [record.message for record in caplog.records]
    assert warnings == ["mlflow gets no further metrics of this run: the server is away. Training continues."]


def test_tracker_that_hangs_holds_up_nothing_but_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: type[FakeTracker], caplog: pytest.LogCaptureFixture
) -> None:
    answers = threading.Event()
    monkeypatch.setattr(fake, "log", lambda *_: answers.wait(60))
    monkeypatch.setattr(trackers, "_SECONDS_TO_FINISH", 0.01)
    describe(tmp_path, monkeypatch, "mlflow")
    sinks = make_trackers(RunSettings.collect(None, None, None))
    try:
        with caplog.at_level(logging.WARNING), tracking(sinks):
            sinks[0].on_training_metrics(1, {"loss": 0.5}, [])
    finally:
        answers.set()
    assert "reports were not sent in 0 s" in caplog.text


# The libraries themselves


def two_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> str:
    """Track a run up to 4 batches and, started again from 2, up to 6; return its id."""
    describe(tmp_path / "digits-1", monkeypatch, name)
    for batches, loss in ((2, 0.5), (4, 0.25)), ((4, 0.25), (6, 0.125)):
        sinks = make_trackers(RunSettings.collect(None, None, None))
        with tracking(sinks):
            for at, value in (batches, loss):
                sinks[0].on_training_metrics(at, {"loss": value, "batches": at}, [])
            sinks[0].on_validation_metrics(loss[0], {"loss": loss[1]})
        assert not sinks[0]._failed
    return str(json.loads((tmp_path / "digits-1/run.json").read_text())["trackers"][name])


def needs(*libraries: str) -> pytest.MarkDecorator:
    missing = [library for library in libraries if find_spec(library) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {' and '.join(missing)}: pip install {' '.join(missing)}")


@pytest.mark.slow
@needs("mlflow", "sqlalchemy")
def test_mlflow_has_one_run_with_one_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    identifier = two_starts(tmp_path, monkeypatch, "mlflow")

    client = MlflowClient()
    experiment = client.get_experiment_by_name("digits")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_id, run.info.run_name, run.info.status) == (identifier, "digits-1", "FINISHED")
    assert run.data.params == {"lr": "0.1", "net.depth": "2", "api_key": "<masked>"}
    curve = [(point.step, point.value) for point in client.get_metric_history(identifier, "loss")]
    assert sorted(set(curve)) == [(2, 0.5), (4, 0.25), (6, 0.125)]
    assert run.data.metrics["val_loss"] == 0.125


@pytest.mark.slow
@needs("trackio")
def test_trackio_has_one_run_with_one_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setattr("trackio.utils.TRACKIO_DIR", tmp_path / "trackio")
    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path / "trackio")
    identifier = two_starts(tmp_path, monkeypatch, "trackio")

    from trackio.sqlite_storage import SQLiteStorage

    assert SQLiteStorage.get_runs("digits") == [identifier] == ["digits-1-ab12"]
    logs = SQLiteStorage.get_logs("digits", identifier)
    assert {(log["step"], log["loss"]) for log in logs if "loss" in log} == {(2, 0.5), (4, 0.25), (6, 0.125)}
    assert {(log["step"], log["val_loss"]) for log in logs if "val_loss" in log} == {(4, 0.25), (6, 0.125)}
    config = SQLiteStorage.get_run_config("digits", identifier) or {}
    assert config["lr"] == 0.1 and config["api_key"] == "<masked>"


@pytest.mark.slow
@needs("wandb")
def test_wandb_has_one_run_with_one_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    import wandb

    identifier = two_starts(tmp_path, monkeypatch, "wandb")
    wandb.teardown()  # at the end of a process otherwise; it writes what is left

    files = sorted((tmp_path / "digits-1/wandb").glob("offline-run-*/*.wandb"))
    assert [file.name for file in files] == [f"run-{identifier}.wandb"] * 2
    for file, value in zip(files, (b"0.5", b"0.125"), strict=True):
        content = file.read_bytes()
        assert b"loss" in content and value in content and b"hush" not in content
