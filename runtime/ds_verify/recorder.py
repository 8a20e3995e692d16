"""Record one training run inside its process, with other lengths than its ``Trainer.fit()`` asks for.

Works on the trainers of trial_runtime and of the real ``determined`` alike, and so on a trial that a script trains.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from ds_verify import host_batches as host
from ds_verify import weights
from ds_verify.record import Key, Record

RANK = int(os.environ.get("RANK", "0"))


class Observed(BaseException):
    """The end of the first ``fit()``, which is all that the entrypoint is run for."""


@dataclass
class Observation:
    """The settings of one run, or of one part of it, and its results.

    Attributes:
        steps: micro-batches to train in all; rounded up to whole optimizer steps. window: between two reports, too.
        validates: whether it validates four times, not only at the end.
        part: 0: the whole run; 1: its first half, which ends with a checkpoint; 2: the half after that.
        seed: of all random generators where training begins.
        home: the folder of the user's code.
        nudge: whether every initial weight is moved by one ulp.
        host_batches: whether the trial gets batches that raise where a GPU would.
        checkpoint: where part 2 starts; what part 1 saved.
        report_progress: called with the number of micro-batches trained.
        times: seconds that each micro-batch after the first took, without validations and reports.
        samples: in a micro-batch of all ranks. precision: the coarsest that a weight has.
        is_deepspeed_trial: whether a DeepSpeedTrial was trained. trial_classes: names of its class and base classes.
        zero_stages: the ZeRO stage of each engine.
        training_samples: the sizes of this rank's training batches. validation_samples: of the batches of its last
            validation. Only of a PyTorchTrial.
    """

    steps: int
    part: int
    seed: int
    home: str
    window: int = 1
    validates: bool = True
    nudge: bool = False
    host_batches: bool = False
    checkpoint: str | None = None
    report_progress: Callable[[int], None] = lambda _: None
    record: Record = field(default_factory=Record)
    trained: int = 0
    times: list[float] = field(default_factory=list)
    samples: int | None = None
    precision: str = "float32"
    is_deepspeed_trial: bool = False
    trial_classes: list[str] = field(default_factory=list)
    zero_stages: list[int] = field(default_factory=list)
    training_samples: set[int] = field(default_factory=set)
    validation_samples: list[int] = field(default_factory=list)
    finished: bool = False

    def lengths(self, accumulation: int) -> tuple[int, int, int]:
        """Return micro-batches: where this part ends, between two validations, and between two reports.

        The run is saved where it validates anyway: a trial that looks at its validations must not see one more.
        """

        def whole(count: float) -> int:
            return max(1, -int(-count // accumulation)) * accumulation

        validation = whole(self.steps / 4)
        middle = 2 * validation
        end = middle if self.part == 1 else max(whole(self.steps), middle + accumulation)
        return end, validation, whole(self.window)


def seed_everything(seed: int) -> None:
    """Seed Python, numpy and torch, every rank alike, as a Determined cluster does."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


@contextlib.contextmanager
def observed(trainer: type, units: ModuleType, observation: Observation) -> Iterator[None]:
    """Have ``fit()`` of ``trainer`` train as ``observation`` asks and then raise Observed.

    Args:
        trainer: the class whose ``fit`` is replaced, with its subclasses.
        units: the package that has ``Batch`` and ``PyTorchCallback``.
    """
    original = trainer.fit  # type: ignore[attr-defined]

    @functools.wraps(original)
    def fit(self: Any, *args: Any, **kwargs: Any) -> None:
        del args, kwargs  # the trial's own lengths and periods
        _fit(functools.partial(original, self), self._trial, self._context, units, observation)
        raise Observed

    trainer.fit = fit  # type: ignore[attr-defined]
    try:
        yield
    finally:
        trainer.fit = original  # type: ignore[attr-defined]


def _fit(fit: Callable[..., None], trial: Any, context: Any, units: ModuleType, observation: Observation) -> None:
    engines = not hasattr(context, "_aggregation_frequency")
    accumulation = context.get_num_micro_batches_per_slot() if engines else context._aggregation_frequency
    end, validation, window = observation.lengths(accumulation)
    batch = accumulation if engines else 1  # micro-batches in what this trainer calls a batch
    observation.samples = _samples(context)
    observation.is_deepspeed_trial = engines
    observation.trial_classes = [base.__name__ for base in type(trial).__mro__]
    observation.zero_stages = [engine.zero_optimization_stage() for engine in context.models] if engines else []
    if observation.nudge:
        weights.move_by_one_ulp(weights.tensors_of(trial, observation.home)[0])
    if observation.host_batches and engines:
        _mark_batches(trial)
    if observation.part != 2 and RANK == 0:
        observation.record.add(Key("setup", 0, "micro-batches in an optimizer step"), accumulation)
    recorder = _recorder(units.PyTorchCallback)(observation, trial, context, window)
    callbacks = trial.build_callbacks
    trial.build_callbacks = lambda: {**(callbacks() or {}), "ds_verify": recorder}
    if not engines:
        _count_samples(trial, observation)
    _time_batches(trial, observation)
    fit(
        max_length=units.Batch(end // batch),
        validation_period=units.Batch(validation // batch) if observation.validates else None,
        reporting_period=units.Batch(window // batch),
        checkpoint_policy="none",
        latest_checkpoint=observation.checkpoint,
    )
    if observation.part != 1:
        add_weights(observation.record, "state", end, trial, observation.home)
        observation.precision = weights.precision(weights.tensors_of(trial, observation.home)[0])
    observation.finished = True


def _samples(context: Any) -> int | None:
    """Return the samples in one micro-batch of all ranks, where the context knows."""
    try:
        return int(context.get_per_slot_batch_size()) * int(context.distributed.get_size())
    except Exception:  # a trial need not have the hyperparameter
        return None


def _recorder(base: type) -> type:
    """Return a class of callbacks that record what they see, derived from the callback class that trains."""

    class Recorder(base):  # type: ignore[misc]
        def __init__(self, observation: Observation, trial: Any, context: Any, window: int) -> None:
            self.observation, self.trial, self.context, self.window = observation, trial, context, window
            self.record = observation.record

        def on_training_start(self) -> None:
            # Each side draws its own random numbers while it sets up. A resumed run continues with those it saved.
            if self.observation.part != 2:
                add_weights(self.record, "initial", 0, self.trial, self.observation.home)
                seed_everything(self.observation.seed)

        def on_training_workload_end(self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]) -> None:
            seen = self.observation
            for metrics in batch_metrics:
                seen.trained += 1
                if RANK == 0:
                    self.record.add_metrics("training", seen.trained, numbers(metrics))
            if not batch_metrics:  # metrics are the chief's
                seen.trained += self.window
            if RANK == 0:
                # Not a user's metrics, and in other units under accumulation.
                means = {name: value for name, value in avg_metrics.items() if name not in ("batches", "epochs")}
                self.record.add_metrics("window", seen.trained, numbers(means))
                rates = [
                    float(group["lr"]) for optimizer in _optimizers(self.context) for group in optimizer.param_groups
                ]
                self.record.add(Key("lr", seen.trained, "learning rates"), sorted(rates))
            for name, norm in weights.norms(self.trial, seen.home).items():
                self.record.add(Key("norm", seen.trained, name, RANK), norm)
            seen.report_progress(seen.trained)

        def on_validation_start(self) -> None:
            self.observation.validation_samples = []

        def on_validation_end(self, metrics: dict[str, Any]) -> None:
            if RANK == 0:
                self.record.add_metrics("validation", self.observation.trained, numbers(metrics))

        def on_checkpoint_upload_end(self, uuid: str) -> None:
            self.observation.checkpoint = uuid

    return Recorder


def numbers(metrics: dict[str, Any]) -> dict[str, Any]:
    """Return the metrics that can be compared as numbers, nested ones under dotted names."""
    found: dict[str, Any] = {}
    for name, value in metrics.items():
        if isinstance(value, dict):
            found.update({f"{name}.{inner}": held for inner, held in numbers(value).items()})
            continue
        try:
            array = np.array(value.detach().float().cpu() if isinstance(value, torch.Tensor) else value)
        except (ValueError, TypeError):
            continue
        if array.dtype.kind in "biuf":
            found[str(name)] = array
    return found


def _optimizers(context: Any) -> list[Any]:
    if hasattr(context, "optimizers"):
        return list(context.optimizers)
    return [engine.optimizer for engine in context.models if engine.optimizer is not None]


def add_weights(record: Record, kind: Any, step: int, trial: object, home: str) -> None:
    """Record every parameter and buffer of the trial on this rank. Collective under ZeRO stage 3."""
    tensors, aliases = weights.tensors_of(trial, home)
    with weights.whole(tensors):
        for name, tensor in tensors.items():
            value = tensor.detach()
            value = value.float() if value.dtype in (torch.bfloat16, torch.float16) else value
            if not value.is_complex():
                record.add(Key(kind, step, name, RANK), value.cpu().numpy())
    record.aliases.update(aliases)


def _count_samples(trial: Any, observation: Observation) -> None:
    """Keep the sizes of the batches that a PyTorchTrial gets."""

    def counting(method: Any, add: Callable[[int], object]) -> Any:
        if not inspect.ismethod(method):
            return method

        @functools.wraps(method.__func__)
        def counted(_: Any, *args: Any, **kwargs: Any) -> Any:
            add(_size(args[0] if args else kwargs.get("batch")))
            return method(*args, **kwargs)

        # Determined reads the parameters without looking at what is wrapped.
        counted.__signature__ = inspect.signature(method.__func__)  # type: ignore[attr-defined]
        return MethodType(counted, trial)

    trial.train_batch = counting(trial.train_batch, observation.training_samples.add)
    if _is_defined(trial.evaluate_batch):
        trial.evaluate_batch = counting(trial.evaluate_batch, lambda size: observation.validation_samples.append(size))


def _size(batch: Any) -> int:
    """Return the samples of a batch: the first dimension of its first tensor; 0 where there is none."""
    tensors = (leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor) and leaf.dim())
    return next((len(tensor) for tensor in tensors), 0)


def _mark_batches(trial: Any) -> None:
    """Let the trial get marked batches; the rest of its arguments stay as they are."""
    for name in ("train_batch", "evaluate_batch", "evaluate_full_dataset"):
        method = getattr(trial, name, None)
        if method is not None and _is_defined(method):
            setattr(trial, name, _with_first_argument(method, host.MarkedBatches))


def _is_defined(method: Any) -> bool:
    """Return whether the user's code defines a method; a base class has one for each that a trial may leave out."""
    return str(method.__module__).partition(".")[0] not in ("trial_runtime", "determined")


def _with_first_argument(method: Callable[..., Any], change: Callable[[Any], Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def changed(first: Any = None, *args: Any, **kwargs: Any) -> Any:
        names = [name for name in ("dataloader_iter", "data_loader") if name in kwargs]
        for name in names:
            kwargs[name] = change(kwargs[name])
        return method(*([] if names else [change(first)]), *args, **kwargs)

    return changed


def _time_batches(trial: Any, observation: Observation) -> None:
    """Keep how long each call of ``train_batch`` takes."""
    method = trial.train_batch
    count = itertools.count()

    @functools.wraps(method)
    def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        result = method(*args, **kwargs)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        if next(count):
            observation.times.append(time.perf_counter() - began)
        return result

    trial.train_batch = timed
