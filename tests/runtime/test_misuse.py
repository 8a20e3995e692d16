# ruff: noqa: ARG002 - trials have the signatures they have
"""What is refused is refused with Determined's exceptions: each misuse is tried on the installed package too."""

from __future__ import annotations

import importlib
import inspect
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import trial_runtime

determined = pytest.importorskip("determined")

for package in ("determined", "trial_runtime"):
    for module in ("core", "errors", "pytorch", "pytorch.deepspeed"):
        importlib.import_module(f"{package}.{module}")

Misuse = Callable[[Any], Any]
DATA = torch.utils.data.TensorDataset(torch.ones(4, 1))


class Endless(torch.utils.data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return itertools.count()


def context(det: Any, hparams: Any = None, exp_conf: Any = None, aggregation: int = 1, slots: int = 1) -> Any:
    return det.pytorch.PyTorchTrialContext(
        core_context=det.core._dummy_init(),
        trial_seed=1,
        hparams=hparams,
        slots_per_trial=slots,
        num_gpus=0,
        exp_conf=exp_conf,
        aggregation_frequency=aggregation,
        steps_completed=0,
        managed_training=True,
        debug_enabled=False,
    )


def wrapped(det: Any, **arguments: Any) -> tuple[Any, Any, Any]:
    """A context with a model and its optimizer."""
    own = context(det, **arguments)
    model = own.wrap_model(torch.nn.Linear(1, 1))
    return own, model, own.wrap_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))


def schedule(det: Any, scheduler: Callable[[Any], Any], mode: str, foreign: bool = False) -> None:
    own, model, optimizer = wrapped(det)
    if foreign:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    own.wrap_lr_scheduler(scheduler(optimizer), det.pytorch.LRScheduler.StepMode[mode])


def reduced(det: Any, reducer: Any, name: str | None) -> Any:
    own = context(det)
    own.wrap_reducer(reducer, name=name)
    return own.reduce_metrics(for_training=True)


def twice(call: Callable[[], Any]) -> None:
    call()
    call()


def reducer_twice(det: Any) -> None:
    own = context(det)
    reducer = own.wrap_reducer(len, name="number")
    own.wrap_reducer(reducer)


def scaler_twice(det: Any) -> None:
    own = context(det)
    twice(lambda: own.wrap_scaler(object()))


def kept_gradients(det: Any) -> None:
    own, _, optimizer = wrapped(det, aggregation=2)
    own.step_optimizer(optimizer, auto_zero_grads=False)


def step_before_training(det: Any) -> None:
    own, _, optimizer = wrapped(det)
    own.step_optimizer(optimizer)


def fit(det: Any, complete: bool = True, **arguments: Any) -> None:
    pytorch = det.pytorch
    base: Any = pytorch.PyTorchTrial

    class Trial(base):  # type: ignore[misc]
        def __init__(self, own: Any) -> None:
            if complete:
                model = own.wrap_model(torch.nn.Linear(1, 1))
                own.wrap_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            return {}

        def build_training_data_loader(self) -> Any:
            return pytorch.DataLoader(DATA, batch_size=2)

        build_validation_data_loader = build_training_data_loader

    own = context(det)
    pytorch.Trainer(Trial(own), own).fit(**arguments)


def nested_import(det: Any) -> None:
    with det.import_from_path("one"), det.import_from_path("two"):
        pass


def ranks(det: Any, **numbers: Any) -> Any:
    all_of_them = {"rank": 0, "size": 1, "local_rank": 0, "local_size": 1, "cross_rank": 0, "cross_size": 1}
    return det.core.DistributedContext(**{**all_of_them, **numbers})


MISUSES: dict[str, Misuse] = {
    "an iterable dataset in a DataLoader": lambda det: det.pytorch.DataLoader(Endless()),
    "no batches": lambda det: det.pytorch.DataLoader(DATA, batch_size=None),
    "negative workers": lambda det: det.pytorch.DataLoader(DATA, num_workers=-1),
    "a negative timeout": lambda det: det.pytorch.DataLoader(DATA, timeout=-1),
    "prefetching without workers": lambda det: det.pytorch.DataLoader(DATA, prefetch_factor=2),
    "workers that stay, without workers": lambda det: det.pytorch.DataLoader(DATA, persistent_workers=True),
    "sampler and shuffle": lambda det: det.pytorch.DataLoader(DATA, shuffle=True, sampler=range(4)),
    "batch sampler and batch size": lambda det: det.pytorch.DataLoader(DATA, batch_size=2, batch_sampler=[[0]]),
    "a negative rank": lambda det: det.pytorch.samplers.DistributedBatchSampler([[0]], 2, -1),
    "no ranks": lambda det: det.pytorch.samplers.DistributedBatchSampler([[0]], 0, 0),
    "a rank too many": lambda det: det.pytorch.samplers.DistributedBatchSampler([[0]], 2, 2),
    "the length of an empty dict": lambda det: det.pytorch.data_length({}),
    "the length of an empty list": lambda det: det.pytorch.data_length([]),
    "the length of a text": lambda det: det.pytorch.data_length("text"),
    "a step mode that is none": lambda det: det.pytorch.LRScheduler(None, 3),
    "a hyperparameter there is not": lambda det: context(det, {"lr": 1}).get_hparam("width"),
    "hyperparameters there are not": lambda det: context(det).get_hparams(),
    "one of no hyperparameters": lambda det: context(det).get_hparam("lr"),
    "an experiment config there is not": lambda det: context(det).get_experiment_config(),
    "the data config of none": lambda det: context(det).get_data_config(),
    "a batch size there is not": lambda det: context(det, {}).get_global_batch_size(),
    "a share of no batch size": lambda det: context(det, {}).get_per_slot_batch_size(),
    "a batch size that is a text": lambda det: context(det, {"global_batch_size": "8"}),
    "a batch size below the ranks": lambda det: context(det, {"global_batch_size": 1}, slots=2),
    "the epoch before training": lambda det: context(det).current_train_epoch(),
    "the batch before training": lambda det: context(det).current_train_batch(),
    "the beginning of no epoch": lambda det: context(det).is_epoch_start(),
    "the end of no epoch": lambda det: context(det).is_epoch_end(),
    "a stop that is no bool": lambda det: context(det).set_stop_requested(1),
    "a logging switch that is no bool": lambda det: context(det).set_enable_tensorboard_logging("yes"),
    "zero backward passes a step": lambda det: wrapped(det)[0].wrap_optimizer(
        torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1), backward_passes_per_step=0
    ),
    "a plateau that the loop steps": lambda det: schedule(
        det, torch.optim.lr_scheduler.ReduceLROnPlateau, "STEP_EVERY_BATCH"
    ),
    "a schedule of a foreign optimizer": lambda det: schedule(
        det, lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1), "MANUAL_STEP", foreign=True
    ),
    "a scaler after the model": lambda det: wrapped(det)[0].wrap_scaler(object()),
    "two scalers": scaler_twice,
    "a step before training": step_before_training,
    "gradients kept while aggregating": kept_gradients,
    "a reducer twice": reducer_twice,
    "a reducer that is none": lambda det: reduced(det, 3, "three"),
    "no dict of an unnamed reducer": lambda det: reduced(det, len, None),
    "a dict of a named reducer": lambda det: reduced(det, lambda values: {"number": len(values)}, "number"),
    "a reducer that fails": lambda det: reduced(det, lambda values: 1 / len(values), "mean"),
    "a DeepSpeed config that is a list": lambda det: det.pytorch.deepspeed.overwrite_deepspeed_config([1], {}),
    "a dict over a number": lambda det: det.pytorch.deepspeed.overwrite_deepspeed_config({"a": 1}, {"a": {"b": 1}}),
    "a DeepSpeed config there is not": lambda det: det.pytorch.deepspeed.overwrite_deepspeed_config("no.json", {}),
    "imports inside imports": nested_import,
    "an InvalidHP without words": lambda det: det.InvalidHP(3),
    "a rank without the others": lambda det: ranks(det, local_rank=None),
    "several nodes without an address": lambda det: ranks(det, size=2, local_size=1, cross_size=2),
    "arguments of torch.load twice": lambda det: det.pytorch.load_trial_from_checkpoint_path(
        ".", torch_load_kwargs={"map_location": "cpu"}, map_location="cpu"
    ),
    "training without a length": fit,
    "a length that is a schedule": lambda det: fit(det, max_length=det.pytorch.Batch([1, 2])),
    "a length that is a number": lambda det: fit(det, max_length=3),
    "a trial without a model": lambda det: fit(det, complete=False, max_length=det.pytorch.Batch(1)),
    "a trial without an evaluation": lambda det: fit(det, max_length=det.pytorch.Batch(1)),
}


@pytest.mark.parametrize("what", MISUSES)
def test_a_misuse_raises_what_determined_raises(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: False)
    theirs, ours = raised(determined, MISUSES[what]), raised(trial_runtime, MISUSES[what])
    assert type(theirs).__name__ in [base.__name__ for base in type(ours).__mro__], (theirs, ours)


def raised(det: Any, misuse: Misuse) -> BaseException:
    try:
        misuse(det)
    except BaseException as error:
        return error
    raise AssertionError(f"{det.__name__} allows it:\n{inspect.getsource(misuse)}")
