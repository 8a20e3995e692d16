"""The Core API: what Determined's does off its cluster, and what ds-train's run directory adds."""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from distributed import run_ranks
from trial_runtime import core
from trial_runtime._cluster_info import ENV_VAR, ClusterInfo, Length, RunInfo, TrialInfo
from trial_runtime.errors import CheckpointNotFound, InvalidCheckpointException, InvalidHP

their_core: Any = pytest.importorskip("determined.core")


@pytest.fixture(params=["trial_runtime", "determined"])
def package(request: pytest.FixtureRequest) -> Any:
    return core if request.param == "trial_runtime" else their_core


@pytest.fixture
def context(package: Any, tmp_path: Path) -> Iterator[Any]:
    """A context off the cluster, of each package."""
    with package._dummy_init(checkpoint_storage=str(tmp_path / "storage")) as made:
        (tmp_path / "storage").mkdir(exist_ok=True)
        yield made


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run directory, as ds-train describes it to a process."""
    info = describe(tmp_path / "run", {"searcher": {"max_length": {"batches": 8}}})
    monkeypatch.setenv(ENV_VAR, info.to_json())
    return tmp_path / "run"


def describe(directory: Path, config: dict[str, Any]) -> ClusterInfo:
    return ClusterInfo(
        trial=TrialInfo(trial_id=3, experiment_id=3, trial_seed=1, hparams={"lr": 0.1}, _config=config),
        run=RunInfo(
            directory=str(directory),
            checkpoint_directory=str(directory / "checkpoints"),
            searcher_metric="accuracy",
            smaller_is_better=False,
        ),
        slot_ids=[0],
    )


def outcome(act: Callable[[], Any]) -> str:
    try:
        return str(act())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


# Checkpoints, against Determined's


def test_a_stored_path_is_restored_with_its_files(context: Any) -> None:
    with context.checkpoint.store_path({"steps_completed": 5, "note": [1]}) as (path, storage_id):
        (path / "deep").mkdir()
        (path / "deep" / "weights").write_text("w")
    with context.checkpoint.restore_path(storage_id) as restored:
        assert (restored / "deep" / "weights").read_text() == "w"
        assert json.loads((restored / "metadata.json").read_text()) == {"steps_completed": 5, "note": [1]}


def test_an_uploaded_folder_is_downloaded_as_selected(context: Any, package: Any, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "a" / "b").mkdir(parents=True)
    for name in ("a/b/one", "a/two", "three"):
        (source / name).write_text(name)
    storage_id = context.checkpoint.upload(
        source, {"steps_completed": 1}, selector=lambda path: path in ("a/b/one", "three", "metadata.json")
    )
    context.checkpoint.download(storage_id, tmp_path / "all")
    assert files(tmp_path / "all") - {"manifest.json"} == {"a/b/one", "three", "metadata.json"}
    context.checkpoint.download(storage_id, tmp_path / "some", selector=lambda path: path.startswith("a"))
    assert files(tmp_path / "some") == {"a/b/one"}
    mode = package.DownloadMode.NoSharedDownload
    context.checkpoint.download(storage_id, str(tmp_path / "some"), mode)
    assert files(tmp_path / "some") - {"manifest.json"} == {"a/b/one", "three", "metadata.json"}


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_uploading_without_a_folder_is_the_same_error(context: Any) -> None:
    with pytest.raises(RuntimeError, match="ckpt_dir=None, shard=False"):
        context.checkpoint.upload(None, {"steps_completed": 1})
    with pytest.raises(RuntimeError, match="ckpt_dir=None, shard=True"):
        context.checkpoint.upload(None, {"steps_completed": 1}, shard=True)


def test_a_checkpoint_that_was_deleted_is_gone(context: Any) -> None:
    with context.checkpoint.store_path({"steps_completed": 5}) as (_, storage_id):
        pass
    context.checkpoint.delete(storage_id)
    with pytest.raises(Exception, match=storage_id), context.checkpoint.restore_path(storage_id) as path:
        assert not path.exists()


# Checkpoints, beyond Determined's


def test_metadata_must_have_the_steps_and_is_kept(run: Path) -> None:
    context = core.init()
    for metadata in (None, {"epochs": 1}):
        with (
            pytest.raises(ValueError, match="requires a 'steps_completed' item"),
            context.checkpoint.store_path(metadata),
        ):
            pass
    metadata = {"steps_completed": 7}
    with context.checkpoint.store_path(metadata) as (_, storage_id):
        metadata["added"] = 1
    assert context.checkpoint.get_metadata(storage_id) == {"steps_completed": 7, "added": 1}
    assert storage_id.startswith("00000007-")
    assert (run / "checkpoints" / "latest").read_text() == storage_id + "\n"
    assert context.checkpoint.get_metadata("latest") == {"steps_completed": 7, "added": 1}
    assert context.checkpoint.get_metadata(str(run / "checkpoints" / storage_id))["added"] == 1


def test_a_block_that_fails_leaves_no_checkpoint(run: Path) -> None:
    context = core.init()
    with pytest.raises(KeyError), context.checkpoint.store_path({"steps_completed": 7}) as (path, _):
        (path / "half").write_text("x")
        raise KeyError
    assert list((run / "checkpoints").iterdir()) == []


def test_a_damaged_checkpoint_is_not_restored(run: Path) -> None:
    context = core.init()
    with context.checkpoint.store_path({"steps_completed": 7}) as (path, storage_id):
        (path / "weights").write_text("x")
    (run / "checkpoints" / storage_id / "weights").write_text("y")
    damaged = pytest.raises(InvalidCheckpointException, match="weights: its content has changed")
    with damaged, context.checkpoint.restore_path(storage_id):
        pass
    with pytest.raises(CheckpointNotFound, match=f"no checkpoint 'x'.*there: {storage_id}"):
        context.checkpoint.get_metadata("x")


# Several ranks, against Determined's rules


def shards(folder: str) -> dict[str, Any]:
    ranks = core.DistributedContext.from_torch_distributed()
    context = core._dummy_init(distributed=ranks, checkpoint_storage=folder)
    own = Path(folder) / f"rank{ranks.rank}"
    own.mkdir()
    (own / f"part{ranks.rank}").write_text(str(ranks.rank))
    (own / "same").write_text("same")
    metadata = {"steps_completed": 4, "ranks": {str(ranks.rank): True}}
    found: dict[str, Any] = {"upload": context.checkpoint.upload(own, metadata, shard=True)}
    with context.checkpoint.restore_path(found["upload"]) as path:
        found["files"] = sorted(files(path))
    found["metadata"] = context.checkpoint.get_metadata(found["upload"])
    found["one folder"] = context.checkpoint.upload(None if ranks.rank else own, metadata, shard=True)
    (own / "same").write_text(str(ranks.rank))
    found["conflict"] = outcome(lambda: context.checkpoint.upload(own, metadata, shard=True))
    found["metadata conflict"] = outcome(
        lambda: context.checkpoint.upload(own, {"steps_completed": ranks.rank, "a": 1}, shard=True,
                                          selector=lambda name: name.startswith("part")))  # fmt: skip
    with context.checkpoint.store_path({"steps_completed": 9}, shard=True) as (path, storage_id):
        (path / f"file{ranks.rank}").write_text("x")
    with context.checkpoint.restore_path(storage_id) as path:
        found["stored"] = sorted(files(path))
    target = Path(folder) / "target"
    context.checkpoint.download(storage_id, target, selector=lambda name: name == f"file{ranks.rank}")
    found["downloaded"] = sorted(files(target))
    found["chief only"] = [
        outcome(lambda: context.checkpoint.upload(own, metadata) and ""),
        outcome(lambda: context.checkpoint.store_path(metadata).__enter__() and ""),
    ]
    found["operations"] = lengths(context)
    found["preempt"] = preempted(context)
    return found


def lengths(context: core.Context) -> list[Any]:
    found: list[Any] = []
    for operation in context.searcher.operations():
        found.append(operation.length)
        if context.distributed.rank == 0:
            operation.report_progress(1)
            operation.report_completed(0.5)
        else:
            found.append(outcome(partial(operation.report_completed, 0.5)))
    chief_only = context.searcher.operations(core.SearcherMode.ChiefOnly)
    found.append(outcome(lambda: next(chief_only).length))
    return found


def preempted(context: core.Context) -> list[Any]:
    with context.preempt:
        before = context.preempt.should_preempt()
        if context.distributed.rank == 1:  # the other rank gets no signal
            os.kill(os.getpid(), signal.SIGTERM)
        deadline = time.monotonic() + 200
        while not (after := context.preempt.should_preempt()) and time.monotonic() < deadline:
            pass
    with core.PreemptContext(context.distributed, core.PreemptMode.ChiefOnly) as chief:
        return [before, after, outcome(chief.should_preempt)]


def test_ranks_save_one_checkpoint_together(tmp_path: Path) -> None:
    first, second = run_ranks(shards, str(tmp_path))
    for name in ("upload", "files", "metadata", "one folder", "stored", "downloaded"):
        assert first[name] == second[name]
    assert first["files"] == ["manifest.json", "metadata.json", "part0", "part1", "same"]
    assert first["metadata"] == {"steps_completed": 4, "ranks": {"0": True, "1": True}}
    assert first["stored"] == ["file0", "file1", "manifest.json", "metadata.json"]
    assert first["downloaded"] == ["file0", "file1"]
    assert first["conflict"] == (
        "RuntimeError: refusing to upload with files conflicts:\n    same uploaded by ranks [0, 1]"
    )
    assert second["conflict"] == "RuntimeError: refusing to upload with files conflicts: {'same': [0, 1]}"
    assert first["metadata conflict"].endswith("metadata conflicts:\n    /steps_completed uploaded by ranks [0, 1]")
    assert second["chief only"] == [
        f"RuntimeError: cannot call .{name}(shard=False) from non-chief worker (rank=1)"
        for name in ("upload", "store_path")
    ]
    assert first["operations"] == [1, "1"]
    assert second["operations"] == [
        1,
        "RuntimeError: you must only call op.report_completed() from the chief worker",
        "RuntimeError: you cannot call searcher.operations(searcher_mode=ChiefOnly) from a non-chief worker.",
    ]
    assert first["preempt"] == [False, True, "False"]
    assert second["preempt"][:2] == [False, True] and "ChiefOnly" in second["preempt"][2]


METADATA: list[list[dict[str, Any]]] = [
    [{"a": 1}, {"b": 2}],
    [{"a": 1}, {"a": 1}],
    [{"a": [1]}, {"a": [2]}],
    [{"a": []}, {"a": {"c": 1}}],
    [{"a": {"c": 1}}, {"a": {"d": 1}}],
    [{"a": {"c": 1}}, {"a": 1}],
    [{"a": {"c": {"x": 1}}}, {"a": {"c": {"x": 2, "y": 3}}}],
    [{}, {"a": {}}],
]


@pytest.mark.parametrize("given", METADATA, ids=str)
def test_metadata_of_ranks_is_merged_as_determined_merges_it(given: list[dict[str, Any]]) -> None:
    from determined.core._checkpoint import merge_metadata as theirs
    from trial_runtime.core._shards import merge_metadata

    class Ranks(core.DummyDistributedContext):
        def allgather(self, stuff: Any) -> list[Any]:
            del stuff
            return json.loads(json.dumps(given))  # type: ignore[no-any-return]

    merged, conflicts = theirs(json.loads(json.dumps(given)))
    if conflicts:
        lines = "\n".join(f"    {name} uploaded by ranks {ranks}" for name, ranks in sorted(conflicts.items()))
        with pytest.raises(RuntimeError) as raised:
            merge_metadata(Ranks(), None)
        assert str(raised.value) == f"refusing to upload with metadata conflicts:\n{lines}"
    else:
        assert merge_metadata(Ranks(), None) == merged


# Reports


def test_off_the_cluster_reports_are_only_logged(package: Any) -> None:
    train = package._dummy_init().train
    train.report_training_metrics(1, {"loss": 0.5})
    train.report_validation_metrics(1, {"loss": 0.5})
    train.report_progress(0.5)
    train.set_status("evaluating")
    assert train.get_experiment_best_validation() is None


@pytest.mark.parametrize("progress", [-0.1, 1.1])
def test_progress_is_a_share(progress: float) -> None:
    with pytest.raises(ValueError, match=f"Progress should be between 0 and 1, not {progress}"):
        core._dummy_init().train.report_progress(progress)


def test_reports_are_written_to_the_run_directory(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    caplog.set_level(logging.INFO)
    with core.init() as context:
        train = context.train
        train.report_training_metrics(2, {"loss": 0.5}, batch_metrics=[{"loss": 0.75}, {"loss": 0.25}])
        train.report_validation_metrics(2, {"accuracy": 0.5, "raw": b"bytes"})
        train.report_validation_metrics(4, {"accuracy": 0.25})
        train.report_metrics("inference", 4, {"count": 3})
        train.report_metrics("inference", 4, {"count": 4})
        assert train.get_experiment_best_validation() == 0.5
        train.report_progress(0.5)
        train.set_status("evaluating")
        assert train.get_metadata() is None
        assert train.set_metadata({"a": 1}) == {"a": 1}
        assert train.get_tensorboard_path() == run / "tensorboard"
        with pytest.raises(RuntimeError, match="invalid scalar value"):
            train.report_validation_metrics(4, {"accuracy": None})
        with pytest.raises(ValueError, match="must not have a dot"):
            train.report_metrics("a.b", 4, {})
        with pytest.raises(RuntimeError, match="MANUAL mode"):
            train.upload_tensorboard_files()
        context.alert("title", "words", "warn")
        context.profiler.on()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert lines[0] == {
        "group": "training", "steps_completed": 2, "metrics": {"loss": 0.5},
        "batch_metrics": [{"loss": 0.75}, {"loss": 0.25}],
    }  # fmt: skip
    assert [(line["group"], line["metrics"]) for line in lines[1:]] == [
        ("validation", {"accuracy": 0.5}), ("validation", {"accuracy": 0.25}),
        ("inference", {"count": 3}), ("inference", {"count": 4}),
    ]  # fmt: skip
    assert json.loads((run / "trial.json").read_text()) == {
        "progress": 0.5, "status": "evaluating", "metadata": {"a": 1},
    }  # fmt: skip
    for message in ("Removed non serializable metrics: raw", "Reported twice for 'inference' at step 4: count",
                    "progress: 50%", "title: words"):  # fmt: skip
        assert message in caplog.text
    events = EventAccumulator(str(run / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("Determined/loss")] == [(0, 0.75), (1, 0.25)]
    assert [(event.step, event.value) for event in events.Scalars("Determined/val_accuracy")] == [(2, 0.5), (4, 0.25)]


def test_in_manual_mode_nothing_is_written_to_tensorboard(run: Path) -> None:
    with core.init(tensorboard_mode=core.TensorboardMode.MANUAL) as context:
        context.train.report_training_metrics(1, {"loss": 0.5})
        context.train.upload_tensorboard_files()
    assert not (run / "tensorboard").exists()
    assert (run / "metrics.jsonl").is_file()


# Length


def test_the_operation_has_the_length_of_the_config(run: Path) -> None:
    context = core.init()
    (operation,) = completed(context.searcher.operations())
    assert operation.length == 8
    assert context.searcher.get_configured_units() is core.Unit.BATCHES
    assert json.loads((run / "trial.json").read_text())["progress"] == 0.5


def completed(operations: Iterator[Any]) -> Iterator[Any]:
    for operation in operations:
        operation.report_progress(operation.length / 2)
        operation.report_completed(0.1)
        yield operation


CONFIGS: list[dict[str, Any]] = [
    {"searcher": {"max_length": 5}},
    {"searcher": {"max_length": {"epochs": 5}}},
    {"searcher": {"max_length": {"records": 5}}},
    {"searcher": {"max_length": 5, "unit": "epochs"}},
    {"searcher": {"name": "single"}},
    {},
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_lengths_and_units_are_read_as_determined_reads_them(config: dict[str, Any]) -> None:
    from determined.core import _searcher as theirs

    searcher = core.SearcherContext(core.DummyDistributedContext(), config, None, lambda _: None)
    units, their_units = searcher.get_configured_units(), theirs._parse_searcher_units(config)
    assert (units and units.value) == (their_units and their_units.value)
    length = theirs._parse_searcher_max_length(config)
    if length is None:
        with pytest.raises(ValueError, match=r"needs a length: write searcher\.max_length"):
            next(searcher.operations())
    else:
        assert next(searcher.operations()).length == length


@pytest.mark.parametrize(
    ("length", "target", "expected"),
    [
        ({"batches": 9}, Length(3, "batches"), 3),  # a search's target
        (9, Length(3, "batches"), 3),
        ({"epochs": 9}, Length(3, "epochs"), 3),
        ({"records": 900}, Length(9, "batches"), 900),
    ],
)
def test_a_search_gives_its_target(length: Any, target: Length, expected: int) -> None:
    config = {"searcher": {"max_length": length}}
    searcher = core.SearcherContext(core.DummyDistributedContext(), config, target, lambda _: None)
    assert next(searcher.operations()).length == expected


@pytest.mark.filterwarnings("ignore:SearcherContext:FutureWarning")
def test_operations_off_the_cluster_are_determineds(context: Any) -> None:
    with pytest.raises(RuntimeError, match=r"you must call op\.report_completed\(\) on each operation"):
        list(context.searcher.operations())
    for operation in context.searcher.operations():
        assert operation.length == 1
        operation.report_progress(1)
        operation.report_completed(0.5)
        operation.report_progress(1)
        with pytest.raises(RuntimeError, match=r"you may only call op\.report_completed"):
            operation.report_completed(0.5)
        with pytest.raises(RuntimeError, match=r"after op\.report_completed"):
            operation.report_progress(0.5)


# Requests to stop, and the end


def test_preempt_must_be_started_once(context: Any, package: Any) -> None:
    assert context.preempt.should_preempt() is False
    with pytest.raises(RuntimeError, match="multiple times"):
        context.preempt.start()
    fresh = package._dummy_init()
    with pytest.raises(RuntimeError, match=r"before PreemptContext\.start\(\)"):
        fresh.preempt.should_preempt()


@pytest.fixture
def acknowledged() -> Iterator[type[core.PreemptContext]]:
    yield core.PreemptContext
    core.PreemptContext.acknowledged = 0


def test_a_signal_is_a_request_to_stop(run: Path, acknowledged: type[core.PreemptContext]) -> None:
    before = signal.getsignal(signal.SIGINT)
    with core.init() as context:
        os.kill(os.getpid(), signal.SIGTERM)
        assert context.preempt.should_preempt(auto_ack=False)
        assert acknowledged.acknowledged == 0
        assert signal.getsignal(signal.SIGINT) is before  # Ctrl-C acts then
        assert context.preempt.should_preempt()
        assert acknowledged.acknowledged == signal.SIGTERM
    assert run.parent.is_dir()


def test_invalid_hyperparameters_end_the_process_well(run: Path) -> None:
    with pytest.raises(SystemExit) as leaving, core.init():
        raise InvalidHP("too large")
    assert leaving.value.code == 0
    assert json.loads((run / "trial.json").read_text()) == {"early_exit": "EXITED_REASON_INVALID_HP"}


def test_one_of_several_ranks_needs_its_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="valid DistributedContext for a multi-slot task: this is one of 2 ranks"):
        core.init()


def test_off_ds_train_checkpoints_go_to_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(ENV_VAR, raising=False)
    with core.init() as context:
        assert context.info is None
        context.train.report_training_metrics(1, {"loss": 0.5})
        with context.checkpoint.store_path({"steps_completed": 1}) as (_, storage_id):
            pass
    assert (tmp_path / "checkpoints" / storage_id / "manifest.json").is_file()
    assert not (tmp_path / "metrics.jsonl").exists()


def test_a_storage_can_be_named_without_ds_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENV_VAR, raising=False)
    context = core.init(checkpoint_storage=str(tmp_path / "there"))
    with context.checkpoint.store_path({"steps_completed": 1}) as (path, _):
        assert path.parent == tmp_path / "there"
