"""``init()`` and ``Trainer``: the entry points of training."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trial_runtime import core
from trial_runtime._cluster_info import FitDefaults, Length
from trial_runtime.errors import InvalidHP
from trial_runtime.pytorch._checkpoints.policy import CheckpointPolicy
from trial_runtime.pytorch._context import TrialContext
from trial_runtime.pytorch._controller import TrialController, _PyTorchTrialController
from trial_runtime.pytorch._loop import process_setup
from trial_runtime.pytorch._loop.settings import RunSettings
from trial_runtime.pytorch._pytorch_context import PyTorchTrialContext
from trial_runtime.pytorch._train_units import Batch, Epoch, TrainUnit
from trial_runtime.pytorch._trial import PyTorchTrial

logger = logging.getLogger("trial_runtime.pytorch")

_REPORTING_DEFAULT = Batch(100)


class BaseTrainer:
    """Trainer of a trial; :meth:`fit` does the work."""

    _controller_class: type[TrialController]
    _trial_class: type

    def __init__(self, trial: Any, context: TrialContext) -> None:
        if not isinstance(trial, self._trial_class):
            raise TypeError(
                f"Trainer takes an instance of a {self._trial_class.__name__}, got {type(trial).__name__} "
                f"(bases: {', '.join(base.__name__ for base in type(trial).__mro__[1:-1]) or 'none'})."
            )
        self._trial = trial
        self._context = context

    def fit(
        self,
        checkpoint_period: TrainUnit | None = None,
        validation_period: TrainUnit | None = None,
        max_length: TrainUnit | None = None,
        reporting_period: TrainUnit = _REPORTING_DEFAULT,
        checkpoint_policy: str = "best",
        latest_checkpoint: str | Path | None = None,
        step_zero_validation: bool = False,
        test_mode: bool = False,
        profiling_enabled: bool = False,
    ) -> None:
        """Train, validate and save checkpoints.

        Under ``ds-train`` an argument that is left at its default is taken from the experiment config.

        Args:
            checkpoint_period: when to save; None: only at the end (and as ``checkpoint_policy`` asks).
            validation_period: when to validate; None: only at the end.
            max_length: how long to train, ``Batch(int)`` or ``Epoch(int)``, from the start of training; needed.
            reporting_period: when to report training metrics; they are reported before validations and checkpoints.
            checkpoint_policy: after which validations to save: ``"all"``, ``"none"``, or ``"best"``: when the
                searcher's metric improved (without a searcher metric: all).
            latest_checkpoint: where to continue: a checkpoint's folder, its name in the checkpoint directory, or
                ``"latest"``.
            step_zero_validation: validate before the first batch.
            test_mode: train one batch, validate one batch, save a checkpoint, return.
            profiling_enabled: accepted; use ``context.set_profiler``, or ``profiling`` in the experiment config.

        Raises:
            ValueError: without a ``max_length``, or for an unknown policy.
            TypeError: when a length or period is no ``Batch`` or ``Epoch``.
        """
        context, info = self._context, self._context._settings.info
        given = info.run.fit if info is not None else FitDefaults()
        if profiling_enabled:
            logger.warning("profiling_enabled has no effect here; use context.set_profiler().")
        if reporting_period is _REPORTING_DEFAULT:
            reporting_period = _unit(given.reporting_period) or reporting_period
        if checkpoint_policy == "best":
            checkpoint_policy = given.checkpoint_policy or checkpoint_policy
        test = test_mode or given.test_mode
        policy = self._policy(checkpoint_policy)
        self._controller_class(
            trial_inst=self._trial,
            context=context,
            checkpoint_period=_period("checkpoint_period", checkpoint_period or _unit(given.checkpoint_period)),
            validation_period=_period("validation_period", validation_period or _unit(given.validation_period)),
            reporting_period=_period("reporting_period", reporting_period),
            smaller_is_better=policy.smaller_is_better,
            steps_completed=0,
            latest_checkpoint=latest_checkpoint or (info.latest_checkpoint if info is not None else None),
            local_training=info is None,
            test_mode=test,
            searcher_metric_name=policy.metric,
            checkpoint_policy=policy.name,
            step_zero_validation=step_zero_validation or bool(given.step_zero_validation),
            max_length=Batch(1) if test or given.validate_only else _length(max_length or _unit(given.max_length)),
            global_batch_size=context._global_batch_size,
            profiling_enabled=profiling_enabled,
        ).run()

    def _policy(self, name: str) -> CheckpointPolicy:
        if name not in ("best", "all", "none"):
            raise ValueError(f'checkpoint_policy must be "best", "all" or "none", got {name!r}.')
        settings = self._context._settings
        searcher = (settings.exp_conf or {}).get("searcher") or {}
        metric, smaller = searcher.get("metric"), bool(searcher.get("smaller_is_better", True))
        if settings.info is not None:
            metric, smaller = settings.info.run.searcher_metric or metric, settings.info.run.smaller_is_better
        if name == "best" and metric is None:
            logger.warning("checkpoint_policy='best' needs searcher.metric in the experiment config; saving 'all'.")
            name = "all"
        return CheckpointPolicy(name, metric, smaller)


class Trainer(BaseTrainer):
    """Trainer of a PyTorchTrial.

    Args:
        trial: an instance of the trial.
        context: the context that ``init()`` gave.
    """

    _controller_class = _PyTorchTrialController
    _trial_class = PyTorchTrial

    def __init__(self, trial: PyTorchTrial, context: PyTorchTrialContext) -> None:
        super().__init__(trial, context)

    def configure_profiler(
        self,
        sync_timings: bool = True,
        enabled: bool = False,
        begin_on_batch: int = 0,
        end_after_batch: int | None = None,
    ) -> None:
        """Deprecated, without effect: ``sync_timings``, ``enabled``, ``begin_on_batch`` and ``end_after_batch`` are
        accepted. Use ``context.set_profiler``.
        """
        del sync_timings, enabled, begin_on_batch, end_after_batch
        logger.error("Trainer.configure_profiler() has no effect; use context.set_profiler().")


@contextlib.contextmanager
def init(
    *,
    hparams: dict[str, Any] | None = None,
    exp_conf: dict[str, Any] | None = None,
    distributed: core.DistributedContext | None = None,
    aggregation_frequency: int = 1,
    enable_tensorboard_logging: bool = True,
    run_dir: Path | str | None = None,
) -> Iterator[PyTorchTrialContext]:
    """Provide a context to make a PyTorchTrial with; train inside the ``with`` block.

    Started by ``torchrun`` it joins the ranks (gloo on CPU, nccl on GPU) unless the script did; otherwise it trains in
    one process. Every rank gets the same seed.

    Args:
        hparams: hyperparameters; under ``ds-train`` by default those of the experiment config.
        exp_conf: experiment config.
        distributed: the ranks, where the script determines them itself.
        aggregation_frequency: batches an optimizer step, K.
        enable_tensorboard_logging: write reported metrics to TensorBoard when there is a run directory.
        run_dir: where metrics, TensorBoard files and checkpoints go. By default checkpoints go to ``checkpoints`` (or
            the directory that the experiment config names), and nothing else is written.
    """
    settings = RunSettings.collect(hparams, exp_conf, run_dir)
    with process_setup.run_session(distributed, settings) as ranks:
        context = PyTorchTrialContext._make(
            core.Context(ranks, settings),
            settings.hparams,
            settings.exp_conf,
            enable_tensorboard_logging=enable_tensorboard_logging,
            aggregation_frequency=aggregation_frequency,
        )
        with closing(context):
            yield context


@contextlib.contextmanager
def closing(context: TrialContext) -> Iterator[None]:
    """Close a context at the end. A trial that raised InvalidHP ends the process, with exit code 0."""
    try:
        yield
    except InvalidHP as error:
        logger.info(f"The trial raised InvalidHP: {error.msg}")
        raise SystemExit(0) from error
    finally:
        context._close()


def _unit(length: Length | None) -> TrainUnit | None:
    if length is None:
        return None
    return Batch(length.value) if length.unit == "batches" else Epoch(length.value)


def _length(unit: TrainUnit | None) -> TrainUnit:
    if unit is None:
        raise ValueError("max_length must be defined in local training mode, such as fit(max_length=pytorch.Epoch(1)).")
    if not isinstance(unit, Batch | Epoch) or not isinstance(unit.value, int):
        raise TypeError(f"max_length must be pytorch.Batch(int) or pytorch.Epoch(int), got {unit!r}.")
    return unit


def _period(name: str, unit: TrainUnit | None) -> TrainUnit | None:
    if unit is not None and not isinstance(unit, Batch | Epoch):
        raise TypeError(f"{name} must be a pytorch.Batch or pytorch.Epoch, got {unit!r}.")
    return unit


PyTorchTrial.trial_controller_class = _PyTorchTrialController  # here, because the controller knows the trial
