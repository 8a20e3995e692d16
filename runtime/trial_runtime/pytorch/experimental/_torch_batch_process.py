"""The loop of :func:`torch_batch_process`, and what it hands to a processor."""

from __future__ import annotations

import abc
import contextlib
import json
import logging
import math
import os
import uuid
import warnings
from collections.abc import Iterator, Sized
from pathlib import Path
from typing import Any

import torch

from trial_runtime import core
from trial_runtime._cluster_info import get_cluster_info
from trial_runtime.pytorch._data.loader import DataLoader, to_device
from trial_runtime.pytorch._reducer import _PyTorchReducerContext

logger = logging.getLogger("trial_runtime.pytorch")

_COMPLETED = "batch_completed.json"


class TorchBatchProcessorContext(_PyTorchReducerContext):
    """Access of a processor to its device, its ranks and its run. ``wrap_reducer`` registers validation metrics.

    Attributes:
        device: the device of this rank.
    """

    def __init__(self, core_context: core.Context, storage_path: str) -> None:
        super().__init__(core_context.distributed.allgather)
        self._core_context = core_context
        self._storage_path = storage_path
        self.device = get_default_device(core_context)

    def get_hparams(self) -> dict[str, Any]:
        """Return the hyperparameters. Raises RuntimeError without ``ds-train``."""
        info = get_cluster_info()
        if info is None:
            raise RuntimeError("there are no hyperparameters: start the script by ds-train, from an experiment config")
        return info.trial.hparams

    def to_device(self, data: Any, warned_types: set[type] | None = None) -> Any:
        """Return data (arrays, tensors, nested lists, tuples and dicts of them) on the device, arrays as tensors."""
        return to_device(data, self.device, warned_types)

    def get_tensorboard_path(self) -> Path:
        """Return the run's directory of TensorBoard files."""
        return self._core_context.train.get_tensorboard_path()

    def prepare_model_for_inference(self, model: torch.nn.Module) -> torch.nn.Module:
        """Switch a model to evaluation and move it to the device; return it."""
        model.eval()
        return model.to(self.device)

    @contextlib.contextmanager
    def upload_path(self) -> Iterator[Path]:
        """Provide this rank's folder for results: ``outputs/<id>/rank_R`` beside the run's checkpoints.

        A resumed run has the same folder. Files stay there; none is uploaded.
        """
        path = self._core_context.settings.checkpoint_directory.absolute().parent / "outputs" / self._storage_path
        path.mkdir(parents=True, exist_ok=True)
        yield path

    def report_metrics(self, group: str, steps_completed: int, metrics: dict[str, Any]) -> None:
        """Report metrics of any group, whose name has no dot; ``steps_completed``: batches processed."""
        self._core_context.train.report_metrics(group=group, steps_completed=steps_completed, metrics=metrics)

    def report_task_using_model_version(self, model_version: Any) -> None:
        """Log which version of a model the run uses."""
        self._core_context.experimental.report_task_using_model_version(model_version)

    def report_task_using_checkpoint(self, checkpoint: Any) -> None:
        """Log which checkpoint the run uses."""
        self._core_context.experimental.report_task_using_checkpoint(checkpoint)

    def get_distributed_rank(self) -> int:
        """Return the rank of this process."""
        return self._core_context.distributed.rank

    def get_distributed_size(self) -> int:
        """Return the number of ranks."""
        return self._core_context.distributed.size


class TorchBatchProcessor(abc.ABC):
    """The work on each batch. It is made once on each rank."""

    @abc.abstractmethod
    def __init__(self, context: TorchBatchProcessorContext) -> None:
        """Set up what the batches need, such as a model."""

    @abc.abstractmethod
    def process_batch(self, batch: Any, batch_idx: int) -> None:
        """Process a batch.

        Args:
            batch: a batch of the data set, on the CPU.
            batch_idx: its index among the batches of this rank, from 0.
        """

    def on_checkpoint_start(self) -> None:  # noqa: B027
        """Make durable what was processed: a checkpoint follows, behind which a resumed run begins."""

    def on_finish(self) -> None:  # noqa: B027
        """Run once at the end, when the data set is processed whole."""


def get_default_device(core_context: core.Context) -> torch.device:
    """Return the CUDA device of this rank, else the CPU."""
    if torch.cuda.device_count() == 0:
        return torch.device("cpu")
    return torch.device("cuda", core_context.distributed.local_rank)


def torch_batch_process(
    batch_processor_cls: type[TorchBatchProcessor],
    dataset: torch.utils.data.Dataset[Any],
    batch_size: int | None = None,
    max_batches: int | None = None,
    checkpoint_interval: int = 5,
    dataloader_kwargs: dict[str, Any] | None = None,
    distributed_context: core.DistributedContext | None = None,
) -> None:
    """Process a data set once, its batches dealt to the ranks in turn. All ranks must call it.

    Under ``ds-train`` a run that was stopped resumes behind its newest checkpoint. At the end the reducers' metrics are
    reported as validation metrics.

    Args:
        batch_processor_cls: what to do with each batch.
        dataset: has a length.
        batch_size: samples a batch, by default 1.
        max_batches: most batches for each rank.
        checkpoint_interval: batches between checkpoints, which hold how many are done.
        dataloader_kwargs: arguments of the loader; neither ``shuffle=True`` nor a sampler.
        distributed_context: the ranks; by default those of the launcher.

    Raises:
        TypeError: the data set has no length.
        ValueError: an argument cannot be used.
    """
    options = dict(dataloader_kwargs or {})
    _check(options, batch_size, checkpoint_interval)
    if not isinstance(dataset, Sized):
        raise TypeError(f"Dataset must implement __len__(): {type(dataset).__name__} does not")
    size = int(options.pop("batch_size", batch_size or 1))
    ranks = distributed_context or _launched_ranks()
    with core.init(distributed=ranks, preempt_mode=core.PreemptMode.WorkersAskChief) as core_context:
        _Run(core_context, checkpoint_interval).process(batch_processor_cls, dataset, size, max_batches, options)


def _check(options: dict[str, Any], batch_size: int | None, checkpoint_interval: int) -> None:
    if checkpoint_interval <= 0:
        raise ValueError(f"checkpoint_interval should be a positive integer, not {checkpoint_interval}")
    if options.pop("shuffle", False):
        raise ValueError("'shuffle' must be false for accurate sharding and checkpointing")
    for name in ("sampler", "batch_sampler"):
        if name in options:
            raise ValueError(f"Please remove {name!r} arg as we will initialize a {name} automatically.")
    if batch_size is not None and "batch_size" in options:
        raise ValueError("batch_size is passed into torch_batch_process and dataloader_kwargs")


def _launched_ranks() -> core.DistributedContext | None:
    """Return the ranks that a launcher started, with torch.distributed up; None for one process."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return None
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group(backend="nccl" if torch.cuda.is_available() else "gloo")
    return core.DistributedContext.from_torch_distributed()


class _Run:
    """One pass over a data set, from where an earlier one stopped."""

    def __init__(self, core_context: core.Context, checkpoint_interval: int) -> None:
        self._core = core_context
        self._ranks = core_context.distributed
        self._interval = checkpoint_interval
        self._skip, self._output = self._restore()
        self._checkpoint: int | None = None  # batches at the newest checkpoint of this process

    def process(
        self,
        kind: type[TorchBatchProcessor],
        dataset: Sized,
        batch_size: int,
        limit: int | None,
        options: dict[str, Any],
    ) -> None:
        context = TorchBatchProcessorContext(self._core, f"{self._output}/rank_{self._ranks.rank}")
        processor = kind(context)
        loader = DataLoader(dataset, batch_size=batch_size, shuffle=False, **options)  # type: ignore[arg-type]
        share = loader.get_data_loader(
            repeat=False, skip=self._skip, num_replicas=self._ranks.size, rank=self._ranks.rank
        )
        batches = iter(share)
        # Every rank takes the same number of turns, so that all meet at each checkpoint.
        length = _limited(math.ceil(len(dataset) / batch_size / self._ranks.size), limit)
        done = self._skip
        for index in range(self._skip, length):
            batch = next(batches, None)
            if batch is not None:
                processor.process_batch(batch=batch, batch_idx=index)
            done = index + 1
            if done % self._interval == 0:
                self._save(processor, done)
                if self._ranks.rank == 0:
                    self._core.train.report_progress(min(1.0, index * self._ranks.size * batch_size / len(dataset)))
                if self._core.preempt.should_preempt():
                    self._report(context, done)
                    return
        if self._checkpoint != done:
            self._save(processor, done)
        self._report(context, done)
        processor.on_finish()
        self._ranks.barrier()
        if self._ranks.rank == 0:
            self._core.train.report_progress(1.0)

    def _restore(self) -> tuple[int, str]:
        """Return how many batches each rank has processed, and the id of the folder of their results."""
        info = get_cluster_info()
        if info is not None and info.latest_checkpoint is not None:
            with self._core.checkpoint.restore_path(info.latest_checkpoint) as path:
                metadata = json.loads((path / "metadata.json").read_text(encoding="utf-8"))
            logger.info(f"Previous run completed {metadata['steps_completed']} steps")
            return int(metadata["steps_completed"]), str(metadata["default_output_uuid"])
        return 0, str(self._ranks.broadcast(str(uuid.uuid4()) if self._ranks.rank == 0 else None))

    def _save(self, processor: TorchBatchProcessor, done: int) -> None:
        """Commit a checkpoint of what every rank has processed."""
        processor.on_checkpoint_start()
        logger.info(f"Completed steps: {done} and checkpointing")
        everywhere = self._ranks.gather(done)
        if everywhere is not None:
            metadata = {"steps_completed": min(everywhere), "default_output_uuid": self._output}
            with self._core.checkpoint.store_path(metadata) as (path, _):
                (path / _COMPLETED).write_text(json.dumps({"batch_completed": min(everywhere)}), encoding="utf-8")
        self._checkpoint = done

    def _report(self, context: TorchBatchProcessorContext, done: int) -> None:
        """Report the reducers' metrics; a reducer that was wrapped for training alone, too."""
        reducers = list(context._wrapped_reducers)
        if not reducers:
            return
        gathered = self._ranks.gather([reducer.per_slot_reduce() for reducer in reducers])
        if gathered is not None:
            metrics = context.run_cross_slot_reduction(reducers, gathered)
            self._core.train.report_validation_metrics(steps_completed=done, metrics=metrics)


def _limited(length: int, limit: int | None) -> int:
    if limit is None or 0 < limit <= length:
        return length if limit is None else limit
    warnings.warn(f"max_batches is {limit}, and each rank has {length} batches: all are processed", stacklevel=4)
    return length
