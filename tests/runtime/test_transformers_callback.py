"""``transformers.DetCallback`` in a Trainer on a tiny model: what it reports, saves and stops, as Determined's does."""

from __future__ import annotations

import importlib
import json
import signal
import subprocess
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_project
import pytest
import torch
from forked_python import forked_python
from trial_runtime import core
from trial_runtime._cluster_info import Length

pytestmark = pytest.mark.skipif(
    not (find_spec("transformers") and find_spec("accelerate")), reason="needs transformers and accelerate"
)

OURS = "trial_runtime.transformers"
transformers: Any
_callback: Any


@pytest.fixture(autouse=True, scope="module")
def imports() -> None:
    """Import transformers for the first test: each worker collects this file, and the import takes 2 CPU seconds."""
    global transformers, _callback
    transformers = importlib.import_module("transformers")
    _callback = importlib.import_module("trial_runtime.transformers._callback")


class Recorder:
    """A core context that records its calls."""

    def __init__(self, preempt_after: int | None = None) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._asked, self._preempt_after = 0, preempt_after
        self.train = self.checkpoint = self.preempt = self.distributed = self

    def report_metrics(self, **given: Any) -> None:
        self.calls.append(("report", given["group"], given["steps_completed"], sorted(given["metrics"])))

    def report_progress(self, progress: float) -> None:
        self.calls.append(("progress", round(progress, 6)))

    def upload(self, folder: str, metadata: dict[str, Any], shard: bool, selector: Any) -> None:
        names = {str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file()}
        kept = sorted(name for name in names if selector(name))
        self.calls.append(("upload", metadata, shard, [name for name in kept if "my_data" in name or "config" in name]))

    def should_preempt(self) -> bool:
        self._asked += 1
        return self._preempt_after is not None and self._asked > self._preempt_after

    def barrier(self) -> None: ...


def info(**searcher: Any) -> Any:
    config = {"searcher": {"name": "single", "metric": "eval_loss", **searcher}}
    trial = SimpleNamespace(trial_id=7, _config=config)
    run = SimpleNamespace(fit=SimpleNamespace(max_length=None))
    return SimpleNamespace(task_type="TRIAL", trial=trial, latest_checkpoint=None, run=run)


def arguments(folder: Path, **more: Any) -> Any:
    length = {} if "num_train_epochs" in more else {"max_steps": 4}
    return transformers.TrainingArguments(
        output_dir=str(folder), report_to=[], use_cpu=True, per_device_train_batch_size=4, logging_steps=1,
        disable_tqdm=True, **length, **more,
    )  # fmt: skip


def train(folder: Path, callback: Any, args: Any) -> Any:
    model_path = folder / "model"
    if not model_path.exists():
        huggingface_project.write_model(model_path)
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(model_path)
    model = transformers.AutoModelForSequenceClassification.from_config(config)
    words = torch.randint(5, 40, (8, 6), generator=torch.Generator().manual_seed(1))
    rows = [{"input_ids": row, "labels": row.sum() % 2} for row in words]
    trainer = transformers.Trainer(model=model, args=args, train_dataset=rows, eval_dataset=rows, callbacks=[callback])
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    return trainer


def recorded(
    package: str, folder: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], more: dict[str, Any]
) -> list[tuple[Any, ...]]:
    folder.mkdir()
    described = info(**options.get("searcher", {}))
    module: Any = importlib.import_module(package)
    if package == OURS:
        monkeypatch.setattr(_callback, "get_cluster_info", lambda: described)
    else:
        monkeypatch.setattr(importlib.import_module("determined"), "get_cluster_info", lambda: described)
    recorder = Recorder(options.get("preempt_after"))
    args = arguments(folder / "out", **more)
    callback = module.DetCallback(
        recorder, args, filter_metrics=options.get("filter_metrics"), user_data=options.get("user_data")
    )
    train(folder, callback, args)
    return recorder.calls


@pytest.mark.parametrize(
    ("options", "more"),
    [
        ({"user_data": {"a": 1}}, {"eval_strategy": "steps", "eval_steps": 2, "save_steps": 2}),
        ({"filter_metrics": ["grad_norm"]}, {"save_strategy": "no"}),
        ({"searcher": {"max_length": {"batches": 4}}, "preempt_after": 1}, {"save_steps": 3}),
        ({"searcher": {"max_length": {"epochs": 2}}}, {"num_train_epochs": 2, "eval_strategy": "epoch"}),
    ],
    ids=["steps", "filtered", "preempted", "epochs"],
)
def test_the_run_gets_what_determineds_callback_gives_it(
    options: dict[str, Any], more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("determined")
    calls = recorded(OURS, tmp_path / "ours", monkeypatch, options, more)
    assert calls == recorded("determined.transformers", tmp_path / "theirs", monkeypatch, options, more)
    kinds = {call[0] for call in calls}
    assert {"report", "upload", "progress"} <= kinds
    last = 2 if "preempt_after" in options else 4
    assert [call[1]["steps_completed"] for call in calls if call[0] == "upload"][-1] == last


def test_a_run_ends_at_its_target_where_a_search_gives_it_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described = info(max_length={"batches": 4})
    described.run.fit.max_length = Length(3, "batches")
    monkeypatch.setattr(_callback, "get_cluster_info", lambda: described)
    recorder, args = Recorder(), arguments(tmp_path / "out")
    trainer = train(tmp_path, _callback.DetCallback(recorder, args), args)
    assert trainer.state.global_step == 3
    assert ("upload", {"steps_completed": 3, "trial_id": 7}) in [call[:2] for call in recorder.calls]


@pytest.mark.parametrize(
    ("searcher", "message"),
    [
        ({"max_length": 4}, "searcher.max_length: 4 has no unit"),
        ({"max_length": {"batches": 5}}, r"searcher.max_length is 5 batches, and the Trainer trains 4 batches"),
        ({"max_length": {"epochs": 4}}, "is 4 epochs, and the Trainer trains 4 batches .--max_steps."),
        ({"time_metric": "batches", "max_time": 9}, "searcher.max_time is 9 batches"),
    ],
)
def test_a_length_that_is_not_the_trainers_is_refused(
    searcher: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_callback, "get_cluster_info", lambda: info(**searcher))
    with pytest.raises(ValueError, match=message):
        _callback.DetCallback(Recorder(), arguments(tmp_path))


def test_an_evaluation_without_the_searchers_metric_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_callback, "get_cluster_info", lambda: info(metric="eval_accuracy"))
    args = arguments(tmp_path / "out")
    with pytest.raises(ValueError, match=r"searcher.metric is 'eval_accuracy' .* it has eval_loss, batches, epochs"):
        train(tmp_path, _callback.DetCallback(Recorder(), args), args)


def test_it_works_without_ds_train(tmp_path: Path) -> None:
    args = arguments(tmp_path / "out", save_steps=2)
    with core.init(checkpoint_storage=str(tmp_path / "checkpoints")) as context:
        train(tmp_path, _callback.DetCallback(context, args), args)
    found = sorted(path.name.partition("-")[0] for path in (tmp_path / "checkpoints").glob("0*"))
    assert found == ["00000002", "00000004"]


SCRIPT = """\
import sys

import determined as det
import torch
import transformers
from determined.transformers import DetCallback

args = transformers.TrainingArguments(
    output_dir="out", report_to=[], use_cpu=True, max_steps=6, save_steps=3, logging_steps=3, disable_tqdm=True,
    eval_strategy="steps", eval_steps=3,
)
with det.core.init() as core_context:
    callback = DetCallback(core_context, args)
    model = transformers.AutoModelForSequenceClassification.from_config(
        transformers.AutoConfig.from_pretrained("tiny_bert")
    )
    words = torch.randint(5, 40, (8, 6))
    rows = [{"input_ids": row, "labels": row.sum() % 2} for row in words]

    class Stop(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            print("step", state.global_step, flush=True)
            if state.global_step == 3 and args.resume_from_checkpoint is None:
                import os, signal
                os.kill(os.getpid(), signal.SIGTERM)

    trainer = transformers.Trainer(
        model=model, args=args, train_dataset=rows, eval_dataset=rows, callbacks=[Stop(), callback]
    )
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
"""
CONFIG = """\
name: trainer
entrypoint: python3 script.py
searcher: {name: single, metric: eval_loss, max_length: {batches: 6}}
"""


@pytest.mark.slow
def test_a_script_under_ds_train_is_stopped_and_resumed(tmp_path: Path) -> None:
    huggingface_project.write_model(tmp_path / "tiny_bert")
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "const.yaml").write_text(CONFIG)

    def ds_train() -> subprocess.CompletedProcess[str]:
        command = [forked_python(), "-m", "trial_runtime.train", "const.yaml", "--run-dir", "run"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)

    first = ds_train()
    assert first.returncode == 128 + signal.SIGTERM, first.stderr
    second = ds_train()  # the same run directory: it resumes
    assert second.returncode == 0, second.stderr
    assert [line for line in second.stdout.splitlines() if line.startswith("step")] == ["step 4", "step 5", "step 6"]
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert {(row["group"], row["steps_completed"]) for row in rows} >= {("validation", 6), ("training", 3)}


def test_kinds_of_metrics_are_recognized_by_their_names() -> None:
    assert importlib.import_module(OURS).get_metric_type({"loss": 1, "eval_loss": 2}) == "eval_"
    assert importlib.import_module(OURS).get_metric_type({"test_loss": 1}) == "test_"
    assert importlib.import_module(OURS).get_metric_type({"loss": 1}) == "train_"


def test_the_deepspeed_config_of_a_command_line_is_found() -> None:
    assert (
        importlib.import_module(OURS).get_ds_config_path_from_args(["--x", "--deepspeed", "ds.json", "y"]) == "ds.json"
    )
    assert importlib.import_module(OURS).get_ds_config_path_from_args(["--deepspeed"]) is None
    assert importlib.import_module(OURS).get_ds_config_path_from_args([]) is None
