# ruff: noqa: ARG001, ARG002, ARG005 - trials and callbacks have the signatures they have
"""fit() does what Determined's does: the same trial, with the same arguments, tells the same story under both."""

from __future__ import annotations

import importlib
import itertools
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import toys
import trial_runtime
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trial_runtime import pytorch

determined = pytest.importorskip("determined")
for module in ("core", "pytorch"):
    importlib.import_module(f"determined.{module}")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of determined

EPOCH = 6  # batches
HOOKS = [
    "on_trial_startup", "on_checkpoint_load_start", "load_state_dict", "on_training_start", "on_training_epoch_start",
    "on_training_epoch_end", "on_training_workload_end", "on_validation_start", "on_validation_epoch_start",
    "on_validation_epoch_end", "on_validation_end", "state_dict", "on_checkpoint_save_start", "on_checkpoint_write_end",
    "on_trial_shutdown",
]  # fmt: skip


def story(log: list[Any], base: type) -> Any:
    """A callback that notes every hook, with what is short and comparable of its arguments."""

    def noting(name: str) -> Any:
        def hook(self: Any, *args: Any, **kwargs: Any) -> Any:
            given = [*args, *kwargs.values()]
            log.append((name, *(plain(value) for value in given if name not in WITHOUT_ARGUMENTS)))
            return {"noted": len(log)} if name == "state_dict" else None

        return hook

    methods = {name: noting(name) for name in HOOKS}
    methods["on_training_epoch_start"] = lambda self, epoch_idx: log.append(("on_training_epoch_start", epoch_idx))
    return type("Story", (base,), methods)()


WITHOUT_ARGUMENTS = (
    "on_trial_startup",
    "on_checkpoint_load_start",
    "on_checkpoint_save_start",
    "on_checkpoint_write_end",
)


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return round(float(value), 6) if getattr(value, "size", 1) == 1 and not isinstance(value, str) else str(value)


def trial(det: Any, evaluation: str, in_order: bool, log: list[Any]) -> type:
    api = det.pytorch

    class Trial(toys.Data, api.PyTorchTrial):  # type: ignore[misc, name-defined]
        training_samples, validation_samples, shuffle = EPOCH * 4, 12, not in_order

        def __init__(self, context: Any) -> None:
            self.context = context
            self.model = context.wrap_model(torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.Dropout(0.2)))
            self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters(), lr=0.05))
            self.labels = context.wrap_reducer(lambda values: {"sum": sum(values), "n": len(values)})
            self.only_training = context.wrap_reducer(max, name="largest", for_validation=False)
            if evaluation == "full":
                self.evaluate_batch = super().evaluate_batch

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            assert (epoch_idx, batch_idx) == (batch_idx // EPOCH, self.context.current_train_batch())
            inputs, targets = batch
            loss = torch.nn.functional.mse_loss(self.model(inputs), targets)
            self.labels.update(float(targets.sum()))
            self.only_training.update(float(targets.max()))
            self.context.backward(loss)
            self.context.step_optimizer(self.optimizer)
            log.append(("train_batch", epoch_idx, batch_idx, round(loss.item(), 6)))
            return loss if evaluation == "full" else {"loss": loss, "half": loss / 2}

        def build_callbacks(self) -> Any:
            return {"story": story(log, api.PyTorchCallback)}

    def evaluate_batch(self: Any, batch: Any, batch_idx: int) -> Any:
        inputs, targets = batch
        self.labels.update(float(targets.sum()))
        error = (self.model(inputs) - targets).abs()
        return {"error": error.mean(), "worst": error.max(), "index": batch_idx}

    def evaluate_full_dataset(self: Any, data_loader: Any) -> Any:
        return {"error": sum(float((self.model(x) - y).abs().mean()) for x, y in data_loader)}

    methods: dict[str, Any] = {"api": api}
    if evaluation == "full":
        methods["evaluate_full_dataset"] = evaluate_full_dataset
    else:
        methods["evaluate_batch"] = evaluate_batch
    if evaluation == "reducers":
        reducer = api.Reducer
        choice = {"error": reducer.SUM, "worst": reducer.MAX, "index": reducer.MIN}
        methods["evaluation_reducer"] = lambda self: choice
    return type("Trial", (Trial,), methods)


def told(
    det: Any, folder: Path, evaluation: str = "batch", k: int = 1, in_order: bool = False, **arguments: Any
) -> list[Any]:
    """The story of one training: arguments are those of the controller, lengths as ``("Batch", 3)``."""
    api, log = det.pytorch, []  # type: ignore[var-annotated]
    controller = api._PyTorchTrialController
    controller.pre_execute_hook(17, determined._DistributedBackend())
    run = det.core._dummy_init(checkpoint_storage=str(folder))
    run.start()
    context = api.PyTorchTrialContext(
        core_context=run,
        trial_seed=17,
        hparams={"global_batch_size": 4},
        slots_per_trial=1,
        num_gpus=0,
        exp_conf={},
        aggregation_frequency=k,
        steps_completed=arguments.get("steps_completed", 0),
        managed_training=True,
        debug_enabled=False,
        enable_tensorboard_logging=False,
    )
    given = {
        "checkpoint_period": None,
        "validation_period": None,
        "reporting_period": ("Batch", 100),
        "smaller_is_better": True,
        "steps_completed": 0,
        "latest_checkpoint": None,
        "local_training": True,
        "test_mode": False,
        "searcher_metric_name": "error",
        "checkpoint_policy": "none",
        "step_zero_validation": False,
        "max_length": ("Batch", 3),
        "global_batch_size": None,
        "profiling_enabled": None,
        **arguments,
    }
    for name in ("checkpoint_period", "validation_period", "reporting_period", "max_length"):
        unit, value = given[name] or ("Batch", sys.maxsize)
        given[name] = getattr(api, unit)(value)
    controller(trial_inst=trial(det, evaluation, in_order, log)(context), context=context, **given).run()
    return log


PERIOD = st.one_of(
    st.none(),
    st.tuples(st.just("Batch"), st.one_of(st.integers(0, 14), st.lists(st.integers(1, 14), max_size=3))),
    st.tuples(st.just("Epoch"), st.one_of(st.integers(1, 3), st.lists(st.integers(1, 3), max_size=2))),
)
LENGTH = st.one_of(st.tuples(st.just("Batch"), st.integers(1, 14)), st.tuples(st.just("Epoch"), st.integers(1, 2)))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    max_length=LENGTH,
    validation_period=PERIOD,
    checkpoint_period=PERIOD,
    reporting_period=PERIOD,
    checkpoint_policy=st.sampled_from(["all", "none"]),
    step_zero_validation=st.booleans(),
    test_mode=st.booleans(),
    evaluation=st.sampled_from(["batch", "reducers", "full"]),
    k=st.sampled_from([1, 2, 4]),
)
def test_every_period_policy_and_mode_gives_the_same_history(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, **arguments: Any
) -> None:
    folder = tmp_path_factory.mktemp("run")
    monkeypatch.chdir(folder)  # determined saves the working directory with every checkpoint
    one = told(determined, tmp_path_factory.mktemp("determined"), **arguments)
    other = told(trial_runtime, tmp_path_factory.mktemp("ours"), **arguments)
    assert other == one


def test_a_resume_gives_the_rest_of_the_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # In order: a shuffled epoch begins anew in determined when it is resumed.
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # or determined cannot read its own checkpoints
    (tmp_path / "code").mkdir()
    monkeypatch.chdir(tmp_path / "code")
    for batches in (4, EPOCH, 7):
        rests = []
        for det in (determined, trial_runtime):
            folder = tmp_path / f"{det.__name__}{batches}"
            told(det, folder, max_length=("Batch", batches), in_order=True)
            name = next(path.name for path in folder.iterdir() if path.is_dir())
            continued: dict[str, Any] = {
                "latest_checkpoint": name,
                "steps_completed": batches,
                "validation_period": ("Batch", 5),
            }
            rests.append(told(det, folder, max_length=("Epoch", 2), in_order=True, **continued))
        assert rests[1] == rests[0]


# A DeepSpeedTrial's loop is the same one.


class Periods(toys.SimpleDS):
    training_samples = EPOCH * 4


class PeriodsPT(toys.SimplePT):
    training_samples = EPOCH * 4


def counts(kind: type, folder: Path, **arguments: Any) -> list[str]:
    log: list[Any] = []
    noted = type("Noted", (kind,), {"build_callbacks": lambda self: {"story": story(log, pytorch.PyTorchCallback)}})
    toys.fit(noted, run_dir=folder, **arguments)
    return [event[0] for event in log]


UNITS = [pytorch.Batch(4), pytorch.Batch([2, 9]), pytorch.Epoch(1), pytorch.Epoch([2])]


@pytest.mark.parametrize(("validation", "checkpoint"), list(itertools.pairwise([*UNITS, None])))
def test_a_deepspeed_trial_has_the_same_periods(
    validation: pytorch.TrainUnit | None, checkpoint: pytorch.TrainUnit | None, tmp_path: Path
) -> None:
    arguments: dict[str, Any] = {
        "max_length": pytorch.Epoch(2),
        "validation_period": validation,
        "checkpoint_period": checkpoint,
        "reporting_period": pytorch.Batch(3),
    }
    one, other = counts(PeriodsPT, tmp_path / "a", **arguments), counts(Periods, tmp_path / "b", **arguments)
    assert other == one


def test_records_are_batches_of_the_global_batch_size() -> None:
    for records, size in itertools.product((1, 7, 64, 65), (1, 8, 64)):
        ours, theirs = pytorch.Batch._from_records(records, size), determined.pytorch.Batch._from_records(records, size)
        assert ours.value == theirs.value


@given(
    value=st.one_of(st.integers(-2, 20), st.lists(st.integers(0, 20))),
    step=st.integers(0, 40),
    unit=st.sampled_from(["Batch", "Epoch"]),
)
def test_a_unit_answers_should_stop_as_determined_does(value: Any, step: int, unit: str) -> None:
    ours, theirs = (getattr(package, unit)(value) for package in (pytorch, determined.pytorch))
    assert ours.should_stop(step) == theirs.should_stop(step)


def test_the_best_policy_saves_when_the_metric_improved(tmp_path: Path) -> None:
    errors = iter([3.0, 4.0, 2.0, 2.0, 1.0])

    class Given(toys.SimplePT):
        def evaluate_full_dataset(self, data_loader: Any) -> Any:
            return {"error": next(errors)}

    Given.evaluate_batch = pytorch.PyTorchTrial.evaluate_batch  # type: ignore[method-assign, assignment]
    saved: list[int] = []

    class Saving(pytorch.PyTorchCallback):
        def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
            saved.append(len(saved))

    def run(**arguments: Any) -> None:
        with pytorch.init(hparams={}, exp_conf={"searcher": {"metric": "error"}}, run_dir=tmp_path) as context:
            kind = type("Kind", (Given,), {"build_callbacks": lambda self: {"saving": Saving()}})
            pytorch.Trainer(kind(context), context).fit(validation_period=pytorch.Batch(1), **arguments)

    run(max_length=pytorch.Batch(4))
    assert len(saved) == 3  # at 3.0, at 2.0, and at the end
    run(max_length=pytorch.Batch(5), latest_checkpoint="latest")
    assert len(saved) == 4
