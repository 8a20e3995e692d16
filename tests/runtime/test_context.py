# ruff: noqa: ARG002 - trials and callbacks have the signatures they have
"""What a trial asks its context, gives to init() and fit(), and returns."""

from __future__ import annotations

import inspect
import json
import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import toys
import trial_runtime as det
from torch import nn
from trial_runtime import core, pytorch
from trial_runtime._cluster_info import ENV_VAR, ClusterInfo, FitDefaults, Length, RunInfo, TrialInfo
from trial_runtime.errors import InternalException, InvalidExperimentException
from trial_runtime.pytorch import deepspeed as det_ds
from trial_runtime.pytorch._loop.profiling import make_profiler
from trial_runtime.pytorch._loop.progress import Progress
from trial_runtime.pytorch._loop.settings import batch_sizes
from trial_runtime.pytorch._reporting.sinks import TensorBoardSink


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys, trial_runtime; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=200)
    assert [det.__getattr__(name) for name in ("core", "pytorch")] == [core, pytorch]
    assert det.__getattr__("tensorboard").__name__ == "trial_runtime.tensorboard"


def test_the_names_of_determined_are_there_with_the_same_parameters() -> None:
    import determined
    import determined.core
    import determined.pytorch as their_pytorch

    pairs: list[tuple[Any, Any]] = [(their_pytorch, pytorch), (their_pytorch.samplers, pytorch.samplers)]
    missing = []
    for theirs, ours in pairs:
        for name, value in vars(theirs).items():
            if inspect.isclass(value) or inspect.isfunction(value):
                public = not name.startswith("_") and value.__module__.startswith("determined.pytorch")
                if public and not hasattr(ours, name):
                    missing.append(name)
    assert sorted(missing) == []
    for name in ("LOG_FORMAT", "get_cluster_info", "import_from_path", "InvalidHP"):
        assert hasattr(det, name)
    assert det.LOG_FORMAT == determined.LOG_FORMAT
    methods_of_both: list[tuple[Any, Any]] = [
        (their_pytorch.Trainer.fit, pytorch.Trainer.fit),
        (their_pytorch.DataLoader.__init__, pytorch.DataLoader.__init__),
        (their_pytorch.PyTorchTrialContext.step_optimizer, pytorch.PyTorchTrialContext.step_optimizer),
        (their_pytorch.PyTorchTrialContext.backward, pytorch.PyTorchTrialContext.backward),
        (their_pytorch.PyTorchTrialContext.wrap_optimizer, pytorch.PyTorchTrialContext.wrap_optimizer),
        (their_pytorch.PyTorchTrialContext.wrap_lr_scheduler, pytorch.PyTorchTrialContext.wrap_lr_scheduler),
        (their_pytorch.PyTorchTrialContext.wrap_reducer, pytorch.PyTorchTrialContext.wrap_reducer),
        (their_pytorch.adapt_batch_sampler, pytorch.adapt_batch_sampler),
        (their_pytorch.CheckpointLoadContext.__init__, pytorch.CheckpointLoadContext.__init__),
        (determined.core.DistributedContext.__init__, core.DistributedContext.__init__),
    ]
    for theirs, ours in methods_of_both:
        wanted = list(inspect.signature(theirs).parameters)
        assert list(inspect.signature(ours).parameters)[: len(wanted)] == wanted, ours
    methods = {name for name, value in vars(their_pytorch.PyTorchTrialContext).items() if callable(value)}
    assert {name for name in methods if not name.startswith("_")} <= set(dir(pytorch.PyTorchTrialContext))
    hooks = {name for name in vars(their_pytorch.PyTorchCallback) if not name.startswith("_")}
    assert hooks == {name for name in vars(pytorch.PyTorchCallback) if not name.startswith("_")}


def test_questions_about_training_have_answers_in_training_only(tmp_path: Path) -> None:
    answers = []

    class Asking(toys.SimpleDS):
        training_samples = 12

        def __init__(self, context: Any) -> None:
            super().__init__(context)
            with pytest.raises(InternalException):
                context.current_train_batch()
            assert not context.is_gradient_accumulation_boundary()
            assert context.get_micro_batch_idx() == 0

        def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
            context = self.context
            answers.append(
                (
                    context.current_train_epoch(),
                    context.current_train_batch(),
                    context.is_epoch_start(),
                    context.is_epoch_end(),
                    context.is_gradient_accumulation_boundary(),
                    context.get_micro_batch_idx(),
                )
            )
            return super().train_batch(dataloader_iter, epoch_idx, batch_idx)

    toys.fit(Asking, {"k": 2}, tmp_path, max_length=pytorch.Batch(3))  # 3 micro-batches an epoch
    assert answers == [
        (0, 0, True, True, False, 0),
        (0, 0, True, True, True, 1),
        (1, 1, True, False, False, 2),
        (1, 1, True, False, True, 3),
        (1, 2, False, True, False, 4),
        (1, 2, False, True, True, 5),
    ]


def test_between_batches_the_latest_one_is_current(tmp_path: Path) -> None:
    told = []

    class Hooks(pytorch.PyTorchCallback):
        def __init__(self, context: Any) -> None:
            self.context = context

        def tell(self, hook: str) -> None:
            c = self.context
            told.append((hook, c.current_train_batch(), c.current_train_epoch(), c.is_epoch_start(), c.is_epoch_end()))

        def on_training_epoch_start(self, epoch_idx: int) -> None:
            self.tell("start")

        def on_training_epoch_end(self, epoch_idx: int) -> None:
            self.tell("end")

        def on_validation_end(self, metrics: dict[str, Any]) -> None:
            self.tell("validated")

    class Telling(toys.SimpleDS):
        training_samples = 16

        def build_callbacks(self) -> Any:
            return {"hooks": Hooks(self.context)}

    toys.fit(Telling, {"k": 2}, tmp_path, max_length=pytorch.Epoch(2), validation_period=pytorch.Epoch(1))
    first = [("start", 0, 0, True, False), ("end", 1, 0, False, True), ("validated", 1, 0, False, True)]
    assert told == [*first, ("start", 2, 1, True, False), ("end", 3, 1, False, True), ("validated", 3, 1, False, True)]


def test_hyperparameters(tmp_path: Path) -> None:
    with pytorch.init(hparams={"global_batch_size": 7, "lr": 0.5}, run_dir=tmp_path) as context:
        assert (context.get_hparam("lr"), context.get_global_batch_size(), context.get_per_slot_batch_size()) == (
            0.5,
            7,
            7,
        )
        with pytest.raises(ValueError, match=r"'rate'.*global_batch_size, lr"):
            context.get_hparam("rate")
        with pytest.raises(ValueError, match="exp_conf"):
            context.get_experiment_config()
    with pytorch.init(run_dir=tmp_path) as context:
        for ask in (context.get_hparams, context.get_global_batch_size, context.get_per_slot_batch_size):
            with pytest.raises(ValueError, match="hparams"):
                ask()
    with (
        pytest.raises(InvalidExperimentException, match="must be an int"),
        pytorch.init(hparams={"global_batch_size": "x"}),
    ):
        pass


def test_a_context_made_by_hand_answers_as_determineds() -> None:
    with pytorch.init(hparams={"global_batch_size": 4}, exp_conf={"data": {}}, enable_tensorboard_logging=0) as context:  # type: ignore[arg-type]
        assert not context.get_enable_tensorboard_logging()
        context.get_data_config()["more"] = 1
        assert context.get_experiment_config() == {"data": {"more": 1}}
        model: Any = context.wrap_model(torch.nn.Linear(1, 1))
        context.backward(model(torch.ones(1, 1)).sum())
        assert float(model.weight.grad) == 1.0
        optimizer = context.wrap_optimizer(torch.optim.SGD(model.parameters(), 0.1), average_aggregated_gradients=False)
        assert context._average == {optimizer: False}
    assert pytorch.CheckpointLoadContext().get_trial_seed() == 0


def test_a_decorated_evaluate_batch_gets_what_it_names(tmp_path: Path) -> None:
    class Decorated(toys.SimplePT):
        def evaluate_batch(self, *args: Any, **kwargs: Any) -> Any:
            return super().evaluate_batch(*args, **kwargs)  # takes no batch_idx

    assert toys.fit(Decorated, run_dir=tmp_path, max_length=pytorch.Batch(1)).validation


def test_invalid_hp_ends_the_process_quietly(tmp_path: Path) -> None:
    class Impossible(toys.SimplePT):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            raise det.InvalidHP("too wide")

    with pytest.raises(SystemExit) as left:
        toys.fit(Impossible, run_dir=tmp_path, max_length=pytorch.Batch(1))
    assert left.value.code == 0


def test_fit_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    refused: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({}, ValueError, "max_length"),
        ({"max_length": 3}, TypeError, "max_length"),
        ({"max_length": pytorch.Epoch([1, 2])}, TypeError, "max_length"),
        ({"max_length": pytorch.Batch(1), "validation_period": 3}, TypeError, "validation_period"),
        ({"max_length": pytorch.Batch(1), "checkpoint_policy": "bset"}, ValueError, "'bset'"),
    ]
    for arguments, error, message in refused:
        with pytest.raises(error, match=message):
            toys.fit(toys.SimplePT, run_dir=tmp_path, **arguments)
    with pytorch.init(run_dir=tmp_path) as context, pytest.raises(TypeError, match="PyTorchTrial"):
        pytorch.Trainer(object(), context)  # type: ignore[arg-type]


def test_a_trial_must_be_complete(tmp_path: Path) -> None:
    class NoModel(toys.SimplePT):
        def __init__(self, context: Any) -> None:
            self.context = context
            self.models = {}

    class NoOptimizer(NoModel):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            context.wrap_model(nn.Linear(1, 1))

    class Both(toys.SimplePT):
        def evaluate_full_dataset(self, data_loader: Any) -> Any:
            return {}

    class NoEngine(toys.SimpleDS):
        def __init__(self, context: Any) -> None:
            self.context = context
            self.models = {}

    for kind, message in [
        (NoModel, "no model"),
        (NoOptimizer, "no optimizer"),
        (Both, "exactly one"),
        (NoEngine, "no engine"),
    ]:
        with pytest.raises(InvalidExperimentException, match=message):
            toys.fit(kind, run_dir=tmp_path, max_length=pytorch.Batch(1))


def test_ds_train_fills_what_fit_and_init_leave_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunInfo(
        directory=str(tmp_path / "run"),
        checkpoint_directory=str(tmp_path / "kept"),
        fit=FitDefaults(
            max_length=Length(6, "batches"), validation_period=Length(2, "batches"), checkpoint_policy="best"
        ),
        searcher_metric="validation_loss",
        aggregation_frequency=2,
    )
    trial = TrialInfo(3, 5, trial_seed=11, hparams={"global_batch_size": 4, "k": 2}, _config={"data": {"a": 1}})
    monkeypatch.setenv(ENV_VAR, ClusterInfo(trial, run, [0]).to_json())
    recorder = pytorch.MetricsRecorder()
    with pytorch.init() as context:
        assert (context.get_trial_id(), context.get_experiment_id(), context.get_trial_seed()) == (3, 5, 11)
        assert (context.get_data_config(), context.get_hparam("k")) == ({"a": 1}, 2)
        assert torch.initial_seed() == 11
        context.add_metrics_sink(recorder)
        pytorch.Trainer(toys.SimplePT(context), context).fit()
    assert [steps for steps, _ in recorder.validation] == [2, 4, 6]
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["group"] for line in lines] == ["training", "validation"] * 3
    assert list((tmp_path / "run" / "tensorboard").glob("*tfevents*"))
    latest = tmp_path / "kept" / (tmp_path / "kept" / "latest").read_text().strip()
    monkeypatch.setenv(ENV_VAR, ClusterInfo(trial, run, [0], latest_checkpoint=str(latest)).to_json())
    with pytorch.init() as context:
        pytorch.Trainer(toys.SimplePT(context), context).fit(max_length=pytorch.Batch(7))
        assert context.get_initial_batch() == 6


def test_reports_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "trial_runtime.pytorch")
    toys.fit(toys.SimpleDS, run_dir=tmp_path, max_length=pytorch.Batch(4), reporting_period=pytorch.Batch(2))
    said = [record.getMessage() for record in caplog.records]
    assert any(
        re.match(r"Trained 4 of 4 batches \(.* batches/s, .* samples/s, 0:00:00 left\): .*loss ", x) for x in said
    )
    assert any(line.startswith("Validated after 4 batches: epochs 0, validation_loss ") for line in said)


def test_tensorboard_gets_each_batch_at_its_step() -> None:
    class Writer:
        def __init__(self) -> None:
            self.scalars: list[tuple[str, int]] = []

        def add_scalar(self, name: str, value: Any, step: int) -> None:
            self.scalars.append((name, step))

        def flush(self) -> None:
            self.flushed = len(self.scalars)

    writer = Writer()
    sink = TensorBoardSink(writer, Progress(last_report=3))
    sink.on_training_metrics(5, {"loss": 2.5, "own": 1.0}, [{"loss": float(i)} for i in range(4)])
    sink.on_validation_metrics(5, {"accuracy": 1.0, "val_loss": 2.0, "matrix": [[1]]})
    assert writer.scalars == [
        ("Determined/loss", 3),
        ("Determined/loss", 3),
        ("Determined/loss", 4),
        ("Determined/loss", 4),
        ("Determined/own", 5),
        ("Determined/val_accuracy", 5),
        ("Determined/val_loss", 5),
    ]
    assert writer.flushed == 7  # TensorBoard shows a report as soon as it is written


def test_a_profiler_steps_with_the_batches(tmp_path: Path) -> None:
    class Profiled(toys.SimplePT):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            context.set_profiler(schedule=torch.profiler.schedule(wait=1, warmup=1, active=1))

    toys.fit(Profiled, run_dir=tmp_path, max_length=pytorch.Batch(4))
    assert list((tmp_path / "tensorboard").glob("*.pt.trace.json*"))


def test_a_config_has_some_batches_profiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit = FitDefaults(profiled_batches=(2, 3))
    run = RunInfo(str(tmp_path), str(tmp_path / "checkpoints"), fit=fit)
    monkeypatch.setenv(ENV_VAR, ClusterInfo(TrialInfo(1, 1, 3, {}, {}), run, [0]).to_json())
    toys.fit(toys.SimpleDS, max_length=pytorch.Batch(6))
    (trace,) = (tmp_path / "tensorboard").glob("*.pt.trace.json")
    assert trace.name == "rank_0_batches_2.pt.trace.json"
    events = json.loads(trace.read_text())["traceEvents"]
    steps = {event["name"] for event in events if str(event.get("name", "")).startswith("ProfilerStep")}
    assert steps == {"ProfilerStep#2", "ProfilerStep#3"}
    assert any(event.get("name") == "aten::addmm" for event in events)


@pytest.mark.parametrize(("first", "recorded"), [(0, [2, 3]), (3, [3]), (4, [])])
def test_profile_counts_batches_over_all_resumes(first: int, recorded: list[int], tmp_path: Path) -> None:
    action_at = make_profiler((2, 3), first, tmp_path, 0).schedule
    actions = {first + step: action_at(step) for step in range(6)}
    assert [batch for batch, action in actions.items() if "RECORD" in action.name] == recorded
    assert [batch for batch, action in actions.items() if action.name == "RECORD_AND_SAVE"] == recorded[-1:]


def test_deprecated_spellings_still_work(tmp_path: Path) -> None:
    with det_ds.init(hparams={"k": 3}, run_dir=tmp_path) as context:
        with pytest.raises(InvalidExperimentException, match="wrap_model_engine"):
            context.get_num_micro_batches_per_slot()
        toys.SimpleDS(context)
        with pytest.warns(FutureWarning, match="get_num_micro_batches_per_slot"):
            assert context.num_micro_batches_per_slot == 3
        with pytest.warns(FutureWarning, match="get_train_micro_batch_size_per_gpu"):
            assert context.train_micro_batch_size_per_gpu == 4
        assert not context.use_pipeline_parallel


def test_configs_merge_deeply_and_leave_their_sources_alone(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text('{"a": 1, "zero": {"stage": 0, "x": 2}}')
    source = {"zero": {"stage": 1}, "new": {"b": [1]}}
    merged = det_ds.overwrite_deepspeed_config(str(file), source)
    assert merged == {"a": 1, "zero": {"stage": 1, "x": 2}, "new": {"b": [1]}}
    merged["new"]["b"].append(2)
    assert source == {"zero": {"stage": 1}, "new": {"b": [1]}}
    with pytest.raises(TypeError, match="a is 1"):
        det_ds.overwrite_deepspeed_config(str(file), {"a": {"b": 1}})
    with pytest.raises(TypeError, match="Expected string or dict"):
        det_ds.overwrite_deepspeed_config(3, {})  # type: ignore[arg-type]
    file.write_text('{"a": 1, "a": 2}')
    with pytest.raises(ValueError, match="twice: a"):
        det_ds.overwrite_deepspeed_config(str(file), {})


def test_an_attr_dict_answers_hasattr_and_nests() -> None:
    args = det_ds.AttrDict({"lr": 1, "deep": {"x": [{"y": 2}]}})
    args.more = {"z": 3}
    assert (args.lr, args.deep.x[0].y, args["more"].z) == (1, 2, 3)
    assert not hasattr(args, "deepscale_config")
    del args.lr
    assert "lr" not in args


def test_reducers_report_who_failed(tmp_path: Path) -> None:
    with pytorch.init(run_dir=tmp_path) as context:
        reducer = context.wrap_reducer(lambda values: 1 / len(values), name="mean")
        with pytest.raises(ValueError, match=r'_SimpleReducer for name="mean" failed in cross_slot_reduce\(\)'):
            context.reduce_metrics(for_training=True)
        reducer.update(3)
        assert context.reduce_metrics(for_training=False) == {"mean": 1.0}
        with pytest.raises(AssertionError, match="twice"):
            context.wrap_reducer(reducer)
        with pytest.raises(AssertionError, match="function or a MetricReducer"):
            context.wrap_reducer(3)  # type: ignore[call-overload]
        context.wrap_reducer(len)
        with pytest.raises(AssertionError, match="name=None but it did not return a dict"):
            context.reduce_metrics(for_training=True)


def test_batches_move_and_count() -> None:
    import numpy as np

    moved = pytorch.to_device({"a": np.ones(3, dtype=np.float32), "b": [torch.ones(2), ("text",)]}, torch.device("cpu"))
    assert isinstance(moved["a"], torch.Tensor)
    assert moved["b"][1] == ("text",)
    assert pytorch.data_length([torch.ones(5, 2)]) == 5
    assert pytorch.data_length({"x": np.ones(4)}) == 4
    with pytest.raises(ValueError, match="empty"):
        pytorch.data_length({})
    with pytest.raises(TypeError, match="get_batch_length"):
        pytorch.data_length("text")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": None}, "batch"),
        ({"num_workers": -1}, "num_workers"),
        ({"persistent_workers": True}, "persistent_workers"),
        ({"prefetch_factor": 2}, "prefetch_factor"),
        ({"shuffle": True, "sampler": [0]}, "sampler"),
        ({"batch_sampler": [[0]], "shuffle": True}, "batch_sampler"),
    ],
)
def test_a_data_loader_refuses_what_torch_refuses(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pytorch.DataLoader(toys.dataset(4), **arguments)


@pytest.mark.parametrize("is_chief", [True, False])
def test_batches_that_ranks_cannot_share_are_one_warning(is_chief: bool, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert batch_sizes({"global_batch_size": 16}, 3, is_chief) == (5, 15)
    assert [record.message for record in caplog.records] == (
        ["global_batch_size 16 does not divide among 3 ranks; 15 is used."] if is_chief else []
    )
