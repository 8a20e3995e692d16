"""Training that diverges or does not improve any more."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import toys
from trial_runtime._cluster_info import ENV_VAR, ClusterInfo, FitDefaults, RunInfo, TrialInfo
from trial_runtime._run_record import read_record
from trial_runtime.errors import TrainingDivergedError
from trial_runtime.pytorch import Batch
from trial_runtime.pytorch._loop.progress import Progress
from trial_runtime.pytorch._loop.throughput import Throughput
from trial_runtime.pytorch._reporting.divergence import DivergenceSink
from trial_runtime.pytorch._reporting.early_stopping import EarlyStoppingSink

NAN = float("nan")


class Diverging(toys.SimpleDS):
    """The loss that it reports is NaN from the third batch on."""

    def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
        metrics = super().train_batch(dataloader_iter, epoch_idx, batch_idx)
        return {"loss": NAN} if batch_idx >= 2 else metrics


def under_ds_train(monkeypatch: pytest.MonkeyPatch, folder: Path, **fit: Any) -> None:
    run = RunInfo(str(folder), str(folder / "checkpoints"), fit=FitDefaults(**fit), searcher_metric="loss")
    monkeypatch.setenv(ENV_VAR, ClusterInfo(TrialInfo(1, 1, 3, {}, {}), run, [0]).to_json())


def test_loss_that_is_nan_is_reported_once_and_at_the_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        toys.fit(Diverging, run_dir=tmp_path, max_length=Batch(8), reporting_period=Batch(2))
    said = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert len(said) == 2
    assert said[0] == "Training diverged: loss is NaN or infinite in each batch from 3 to 4."
    assert said[1].startswith(
        "Training diverged and never recovered: loss is NaN or infinite in each batch from 3 to 8."
    )
    assert "--stop-on-nan" in said[1]


def test_run_directory_records_where_training_diverged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    under_ds_train(monkeypatch, tmp_path)
    toys.fit(Diverging, max_length=Batch(4), reporting_period=Batch(2))
    assert read_record(tmp_path)["diverged_at"] == 3


def test_run_that_is_to_stop_on_nan_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    under_ds_train(monkeypatch, tmp_path, stop_on_nan=True)
    with pytest.raises(TrainingDivergedError, match="in each batch from 3 to 4"):
        toys.fit(Diverging, max_length=Batch(8), reporting_period=Batch(2))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert max(line["steps_completed"] for line in lines) == 4


def test_early_stopping_ends_a_run_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Flat(toys.SimpleDS):
        def evaluate_batch(self, dataloader_iter: Any) -> Any:  # type: ignore[override]
            return {"loss": 1.0 if super().evaluate_batch(dataloader_iter) else 0.0}

    under_ds_train(monkeypatch, tmp_path, early_stopping=2)
    toys.fit(Flat, max_length=Batch(9), validation_period=Batch(1), checkpoint_policy="none")
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["steps_completed"] for line in lines if line["group"] == "validation"] == [1, 2, 3]


def divergence(stops: list[int] | None = None) -> DivergenceSink:
    throughput = Throughput(Progress(), Batch(100), lambda: None)
    return DivergenceSink(throughput, None if stops is None else lambda: stops.append(1))


@pytest.mark.parametrize(
    "batches, is_diverged",
    [
        ([{"loss": NAN}, {"loss": NAN}], True),
        ([{"loss": float("inf")}], True),
        ([{"loss": NAN}, {"loss": 1.0}], False),
        ([{"auc": NAN}], False),
        ([{"d_loss": 1.0, "g_loss": NAN}], True),
        ([{"loss": "text"}], False),
        ([], False),
    ],
)
def test_only_a_whole_report_of_losses_counts(batches: list[dict[str, Any]], is_diverged: bool) -> None:
    stops: list[int] = []
    divergence(stops).on_training_metrics(len(batches), {}, batches)
    assert bool(stops) is is_diverged


def test_any_metric_counts_while_each_step_is_skipped() -> None:
    sink, stops = divergence(), list[int]()
    sink._request_stop = lambda: stops.append(1)
    sink._throughput.skipped = 2
    sink.on_training_metrics(2, {}, [{"objective": NAN}, {"objective": NAN}])
    assert stops


def test_training_that_recovers_ends_well(caplog: pytest.LogCaptureFixture) -> None:
    sink = divergence()
    sink.on_training_metrics(1, {}, [{"loss": NAN}])
    sink.on_training_metrics(2, {}, [{"loss": 1.0}])
    sink.finish()
    assert [record.message for record in caplog.records] == [
        "Training diverged: loss is NaN or infinite in each batch from 1 to 1."
    ]


@pytest.mark.parametrize(
    "values, smaller, stopped_after",
    [
        ([3, 2, 1, 1.5, 1.2, 0.5], True, 5),
        ([3, 2, 1, 0.5], True, None),
        ([1, 2, 1, 1], False, 4),
        ([NAN, NAN, NAN], True, 3),
        ([1, NAN, 0.5, NAN, NAN], True, 5),
    ],
)
def test_patience_counts_validations_since_the_best(
    values: list[float], smaller: bool, stopped_after: int | None
) -> None:
    stops: list[int] = []
    sink = EarlyStoppingSink(2, "loss", smaller, lambda: stops.append(batches))
    for batches, value in enumerate(values, 1):
        sink.on_validation_metrics(batches, {"loss": value})
    assert (stops[0] if stops else None) == stopped_after


def test_resumed_run_counts_on_from_its_reports(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    reports = [{"group": "validation", "steps_completed": n, "metrics": {"loss": n}} for n in (1, 2, 3)]
    path.write_text("".join(json.dumps(report) + "\n" for report in reports))
    stops: list[int] = []
    sink = EarlyStoppingSink(2, "loss", True, lambda: stops.append(1), path)
    sink.on_validation_metrics(2, {"loss": 0.5})  # again, from an earlier checkpoint: 3 does not count
    assert not stops
    sink.on_validation_metrics(3, {"loss": 2})
    sink.on_validation_metrics(4, {"loss": 2})
    assert stops


def test_missing_metric_names_those_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"'loss' \(searcher.metric\).*\['accuracy'\]"):
        EarlyStoppingSink(1, "loss", True, lambda: None).on_validation_metrics(1, {"accuracy": 1})
