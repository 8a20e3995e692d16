"""The part of a trial's context that PyTorchTrial and DeepSpeedTrial share."""

from __future__ import annotations

import dataclasses
import logging
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from trial_runtime import core
from trial_runtime.errors import InternalException
from trial_runtime.pytorch._data import loader
from trial_runtime.pytorch._loop.progress import Progress
from trial_runtime.pytorch._loop.settings import batch_sizes
from trial_runtime.pytorch._lr_scheduler import LRScheduler
from trial_runtime.pytorch._reducer import _PyTorchReducerContext
from trial_runtime.pytorch._reporting.sinks import MetricsSink

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger("trial_runtime.pytorch")

_NO_HPARAMS = (
    "No hyperparameters are known to this trial. Give them to init(hparams=...), or start the trial with ds-train."
)
_NO_BATCH_SIZE = "The hyperparameter global_batch_size is not set. Give it to init(hparams={'global_batch_size': ...})."


class TrialContext(_PyTorchReducerContext):
    """A trial's access to the run it belongs to.

    Args:
        core_context: the run.
        trial_seed: seed of the run; None when it has none.
        hparams: hyperparameters; None when none were given.
        slots_per_trial: number of ranks that share ``hparams["global_batch_size"]``.
        exp_conf: experiment config; None when none was given.
        steps_completed: batches trained before.
        enable_tensorboard_logging: write reported metrics to TensorBoard when there is a run directory.

    Raises:
        InvalidExperimentException: when the global batch size is no int, or smaller than the number of ranks.

    Attributes:
        distributed: the ranks of the run.
        device: the device of this rank.
        models: wrapped models (PyTorchTrial) or engines (DeepSpeedTrial), in the order they were wrapped.
        lr_schedulers: wrapped schedulers.
        profiler: set by :meth:`set_profiler`.
    """

    def __init__(
        self,
        core_context: core.Context,
        trial_seed: int | None,
        hparams: dict[str, Any] | None,
        slots_per_trial: int,
        exp_conf: dict[str, Any] | None,
        steps_completed: int,
        enable_tensorboard_logging: bool = True,
    ) -> None:
        super().__init__(core_context.distributed.allgather)
        self._core = core_context
        self.distributed = core_context.distributed
        self.device = _own_device(self.distributed)
        self.models: list[Any] = []
        self.lr_schedulers: list[LRScheduler] = []
        self.profiler: Any = None
        self._settings = dataclasses.replace(core_context.settings, hparams=hparams, exp_conf=exp_conf, seed=trial_seed)
        is_chief = self.distributed.rank == 0
        self._per_slot_batch_size, self._global_batch_size = batch_sizes(hparams, slots_per_trial, is_chief)
        self._progress = Progress()
        self._epoch_len: int | None = None  # for trials that read it: batches an epoch, as batch_idx counts them
        self._training = False
        self._initial_batch = steps_completed
        self._micro_idx: int | None = None
        self._sinks: list[MetricsSink] = []
        self._stop_requested = False
        self._tensorboard_enabled = enable_tensorboard_logging
        self._tensorboard_writer: Any = None
        self._data_repro_checks_disabled = False
        self._to_device_warned_types: set[type] = set()

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Deprecated: a context of one process from an experiment config, to try a trial out. Use ``init()``."""
        deprecated(f"{cls.__name__}.from_config()", "init(hparams=..., exp_conf=...)")
        hparams = {name: _constant(value) for name, value in (config.get("hyperparameters") or {}).items()}
        context = cls._make(core._dummy_init(), hparams, config)
        context._prepare_standalone()
        return context

    @classmethod
    def _make(
        cls, run: core.Context, hparams: dict[str, Any] | None, exp_conf: dict[str, Any] | None, **own: Any
    ) -> Self:
        """Make the context of a trial in this run, with the run's settings for everything else.

        Args:
            own: further arguments of this kind of context.
        """
        arguments: dict[str, Any] = {
            "core_context": run,
            "trial_seed": run.settings.seed,
            "hparams": hparams,
            "slots_per_trial": run.distributed.size,
            "num_gpus": torch.cuda.device_count(),
            "exp_conf": exp_conf,
            "steps_completed": 0,
        }
        return cls(**arguments, **own)

    def _prepare_standalone(self) -> None:
        """Initialize what a trial needs in a process without ``init()``."""

    # Configuration

    def get_hparams(self) -> dict[str, Any]:
        """Return all hyperparameters. Raises ValueError when none were given."""
        if self._settings.hparams is None:
            raise ValueError(_NO_HPARAMS)
        return self._settings.hparams

    def get_hparam(self, name: str) -> Any:
        """Return one hyperparameter. Raises ValueError when there is none of this name."""
        hparams = self.get_hparams()
        if name not in hparams:
            there = ", ".join(sorted(hparams)) or "none"
            raise ValueError(f"Could not find name '{name}' in experiment hyperparameters; there are: {there}.")
        if name == "global_batch_size":
            logger.warning("Use context.get_per_slot_batch_size() or get_global_batch_size(); they are rounded alike.")
        return hparams[name]

    def get_experiment_config(self) -> dict[str, Any]:
        """Return the experiment config. Raises ValueError when none was given."""
        if self._settings.exp_conf is None:
            raise ValueError("No experiment config is known to this trial. Give it to init(exp_conf=...).")
        return self._settings.exp_conf

    def get_data_config(self) -> dict[str, Any]:
        """Return the field ``data`` of the experiment config."""
        data: dict[str, Any] | None = self.get_experiment_config().get("data")
        return {} if data is None else data

    def get_global_batch_size(self) -> int:
        """Return the samples of all ranks' batches together: the hyperparameter, rounded down to a multiple of the
        ranks."""
        if self._global_batch_size is None:
            raise ValueError(_NO_BATCH_SIZE)
        return self._global_batch_size

    def get_per_slot_batch_size(self) -> int:
        """Return the samples of one rank's batch: the global batch size over the number of ranks."""
        if self._per_slot_batch_size is None:
            raise ValueError(_NO_BATCH_SIZE)
        return self._per_slot_batch_size

    def get_trial_seed(self) -> int:
        """Return the seed of the run."""
        return torch.initial_seed() % 2**31 if self._settings.seed is None else self._settings.seed

    def get_trial_id(self) -> int:
        """Return the number of this run under ``ds-train``, else 0."""
        return self._settings.info.trial.trial_id if self._settings.info else 0

    def get_experiment_id(self) -> int:
        """Return the number of this experiment under ``ds-train``, else 0."""
        return self._settings.info.trial.experiment_id if self._settings.info else 0

    def disable_dataset_reproducibility_checks(self) -> None:
        """Allow data loaders other than :class:`pytorch.DataLoader`.

        The loop uses them as they are: sharing among ranks, shuffling and resuming are the trial's task
        (see ``pytorch.samplers``). A training loader that ends is started again.
        """
        self._data_repro_checks_disabled = True

    # Where training stands

    def _position(self) -> Progress:
        if not self._training:
            raise InternalException("Training has not started.")
        return self._progress

    def get_initial_batch(self) -> int:
        """Return the index of the first batch that this process trains; not 0 when training was resumed."""
        return self._initial_batch

    def current_train_batch(self) -> int:
        """Return the index of the current batch, from the start of training; between batches, of the latest."""
        progress = self._position()
        return progress.batches if self._micro_idx is None else self._micro_idx // progress.micro_batches

    def current_train_epoch(self) -> int:
        """Return the index of the epoch that this batch belongs to."""
        return self._position().epoch_of(self.current_train_batch())

    def is_epoch_start(self) -> bool:
        """Return whether this batch is the first of its epoch."""
        batch, epoch_of = self.current_train_batch(), self._position().epoch_of
        return batch == 0 or epoch_of(batch) > epoch_of(batch - 1)

    def is_epoch_end(self) -> bool:
        """Return whether this batch is the last of its epoch."""
        batch, epoch_of = self.current_train_batch(), self._position().epoch_of
        return epoch_of(batch + 1) > epoch_of(batch)

    def get_stop_requested(self) -> bool:
        """Return whether this rank has asked to stop."""
        return self._stop_requested

    def set_stop_requested(self, stop_requested: bool) -> None:
        """Ask to stop: at the next report all ranks save a checkpoint and leave ``fit()``. One rank is enough.

        Args:
            stop_requested: False takes the request back.

        Raises:
            AssertionError: when it is no bool.
        """
        if not isinstance(stop_requested, bool):
            raise AssertionError("stop_requested must be a boolean")
        if stop_requested:
            logger.info("A stop was requested; training ends at the end of the current step.")
        self._stop_requested = stop_requested

    # Data and devices

    def to_device(self, data: Any) -> Any:
        """Move a batch to this rank's device.

        Args:
            data: arrays and tensors in dicts, lists and tuples; see :func:`pytorch.to_device`.

        Returns:
            the same structure, arrays as tensors. What cannot be moved stays, with one warning a type.
        """
        return loader.to_device(data, self.device, self._to_device_warned_types)

    # Seeing

    def add_metrics_sink(self, sink: MetricsSink) -> None:
        """Add an observer of this run's reports; it is called on the chief."""
        self._sinks.append(sink)

    def set_profiler(self, *args: Any, **kwargs: Any) -> None:
        """Profile with ``torch.profiler.profile(*args, **kwargs)``; traces go to the TensorBoard directory.

        The loop enters, steps and leaves the profiler.
        """
        handler = torch.profiler.tensorboard_trace_handler(str(self.get_tensorboard_path()))
        self.profiler = torch.profiler.profile(*args, on_trace_ready=handler, **kwargs)

    def get_tensorboard_path(self) -> Path:
        """Return the directory of TensorBoard files."""
        return self._settings.tensorboard_directory

    def get_tensorboard_writer(self) -> Any:
        """Return a ``torch.utils.tensorboard.SummaryWriter`` of this rank."""
        if self._tensorboard_writer is None:
            from torch.utils.tensorboard import SummaryWriter

            path, rank = self.get_tensorboard_path(), self.distributed.rank
            self._tensorboard_writer = SummaryWriter(str(path if rank == 0 else path / f"rank_{rank}"))
        return self._tensorboard_writer

    def set_enable_tensorboard_logging(self, enable_tensorboard_logging: bool) -> None:
        """Decide whether the loop writes reported metrics to TensorBoard.

        Args:
            enable_tensorboard_logging: whether it does; there must be a run directory too.

        Raises:
            AssertionError: when it is no bool.
        """
        if not isinstance(enable_tensorboard_logging, bool):
            raise AssertionError("enable_tensorboard_logging must be a boolean")
        self._tensorboard_enabled = enable_tensorboard_logging

    def get_enable_tensorboard_logging(self) -> bool:
        """Return whether the loop writes reported metrics to TensorBoard."""
        return self._tensorboard_enabled

    def _close(self) -> None:
        if self._tensorboard_writer is not None:
            self._tensorboard_writer.close()
            self._tensorboard_writer = None


def _own_device(distributed: core.DistributedContext) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", distributed.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _constant(value: Any) -> Any:
    """Return a hyperparameter's value where the config gives one: ``{type: const, val: 3}`` is 3."""
    if isinstance(value, dict) and value.get("type") == "const":
        return value.get("val")
    return value


def deprecated(old: str, new: str) -> None:
    """Warn that a trial used an old spelling."""
    warnings.warn(f"{old} is deprecated; use {new}.", FutureWarning, stacklevel=3)
