"""Content of a run's checkpoint, and resuming from it."""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
import uuid
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trial_runtime._redaction import masked, masked_hparams
from trial_runtime.errors import InvalidCheckpointException, InvalidExperimentException, MetricNotReportedError
from trial_runtime.pytorch._callback import PyTorchCallback
from trial_runtime.pytorch._checkpoints import determined_format, restricted_load
from trial_runtime.pytorch._checkpoints.commit import Commit
from trial_runtime.pytorch._checkpoints.store import CheckpointStore
from trial_runtime.pytorch._checkpoints.trial_code import class_spec, save_code
from trial_runtime.pytorch._data import rng as _rng
from trial_runtime.pytorch._data.training_data import TrainingData
from trial_runtime.pytorch._loop.strategy import Strategy, overrides
from trial_runtime.pytorch._reporting.aggregation import jsonable
from trial_runtime.pytorch._reporting.sinks import ROUTINE, MetricsSink
from trial_runtime.train.config.errors import did_you_mean

logger = logging.getLogger("trial_runtime.pytorch")


@dataclasses.dataclass(frozen=True)
class Restored:
    """A verified checkpoint.

    Attributes:
        name: its name in the store.
        path: its folder.
        manifest: its manifest.
        rank_state: what this rank wrote; that of another rank when there were fewer.
        warm: whether only weights are taken.
        is_trusted: whether objects in its files may run code.
    """

    name: str
    path: Path
    manifest: dict[str, Any]
    rank_state: dict[str, Any]
    warm: bool = False
    is_trusted: bool = False

    @property
    def progress(self) -> dict[str, Any]:
        """Return the counts of :class:`Progress`."""
        return dict(self.manifest["progress"])

    def data_position(self, ranks: int, micro_batches: int) -> dict[str, Any]:
        """Return the state to start :class:`TrainingData` from with this many data-parallel ranks."""
        saved = self.rank_state.get("data")
        if saved is None:
            return {"taken": int(self.progress["batches"]) * micro_batches, "passes": []}
        wrote = int(self.manifest.get("data_parallel_size", ranks))
        if wrote == ranks:
            return dict(saved)
        # Another share of the data: what a rank's loader kept for itself is of no use.
        read = int(saved["taken"]) * wrote
        shape = {name: saved.get(name) for name in ("batch_size", "pass_length")}
        return {"taken": read // ranks, "passes": saved["passes"], "read": {"batches": read, **shape}}


@dataclasses.dataclass
class CheckpointPolicy:
    """Policy of saving after validations: ``all``, ``best`` by a metric, or ``none``."""

    name: str
    metric: str | None = None
    smaller_is_better: bool = True
    best: float | None = None
    latest: float | None = None

    def wants(self, metrics: dict[str, Any]) -> bool:
        """Return whether to save after a validation with these metrics.

        Raises:
            MetricNotReportedError: when the metric to compare is missing or is no number.
        """
        value = np.asarray(metrics.get(str(self.metric)))
        number = value.size == 1 and value.dtype.kind in "fiub"
        self.latest = float(value.reshape(())) if number else None
        if self.name != "best":
            return self.name == "all"
        if self.metric not in metrics:
            raise MetricNotReportedError(
                f"checkpoint_policy 'best' compares the metric {self.metric!r} (searcher.metric), but the trial's "
                f"validation metrics are {sorted(metrics)}{did_you_mean(str(self.metric), metrics)}."
            )
        now = self.latest
        if now is None:
            raise MetricNotReportedError(
                f"The metric {self.metric!r} (searcher.metric) is not a number: {metrics[self.metric]!r}."
            )
        better = self.best is None or (now < self.best if self.smaller_is_better else now > self.best)
        if better:
            self.best = now
        return better


class RunCheckpointer:
    """Saving and restoring of a run.

    Args:
        strategy: the trial.
        store: where checkpoints are.
        policy: its best metric is saved too.
        sinks: observers of metrics.
    """

    def __init__(
        self, strategy: Strategy, store: CheckpointStore, policy: CheckpointPolicy, sinks: list[MetricsSink]
    ) -> None:
        self.strategy = strategy
        self.context = strategy.context
        self.store = store
        self.policy = policy
        self.sinks = sinks
        self.data: TrainingData | None = None
        self._commit: Commit | None = None

    def save(self) -> None:
        """Write a checkpoint of this moment and begin to commit it; :meth:`finish_commit` ends that. Collective.

        Raises:
            RuntimeError: on every rank, when this one cannot be written or the one before was not committed.
        """
        self.finish_commit()
        progress, distributed = self.context._progress, self.context.distributed
        progress.last_checkpoint = progress.batches
        name = distributed.broadcast(f"{progress.batches:08d}-{uuid.uuid4().hex[:8]}")
        facts = {
            "format": 1,
            "progress": progress.state_dict(),
            "best_metric": self.policy.best,
            "metric": self.policy.latest if progress.last_validation == progress.batches else None,
            "world_size": distributed.size,
            "data_parallel_size": self.strategy.shard.size,
            "versions": _versions(),
        }
        self._commit = self.store.save(name, self._write, facts)

    def finish_commit(self, wait: bool = True) -> None:
        """Collect the result of the commit in progress, and call the callbacks. Collective.

        Args:
            wait: until it has ended; otherwise only when it has ended on all ranks already.

        Raises:
            RuntimeError: on every rank, when it could not be committed.
        """
        commit = self._commit
        if commit is None or not (wait or all(self.context.distributed.allgather(commit.done))):
            return
        self._commit = None
        self._wait_for(commit)
        for callback in self.strategy.callbacks.values():
            callback.on_checkpoint_upload_end(uuid=commit.name)

    def finish(self) -> None:
        """Finish the commit in progress, and upload what could not be uploaded before. Collective.

        Raises:
            CheckpointStorageError: on every rank, when it still cannot be.
        """
        self.finish_commit()
        self.store.finish()

    def close(self) -> None:
        """Wait for the commit in progress, whatever ended training. The ranks may be in different places."""
        commit, self._commit = self._commit, None
        if commit is None:
            return
        try:
            self._wait_for(commit)
        except Exception as error:  # what ended training is on its way out already
            logger.error(f"{error}")

    def _wait_for(self, commit: Commit) -> None:
        commit.result()
        if self.context.distributed.rank == 0:
            logger.info(f"Saved checkpoint {commit.name} in {self.store.directory}.", extra=ROUTINE)

    def _write(self, path: Path) -> None:
        strategy, rank = self.strategy, self.context.distributed.rank
        callbacks = strategy.callbacks
        rng = _rng.get_state()
        checkpoint: dict[str, Any] = {}
        hooks_here = strategy.checkpoint_hooks_on_all_ranks or rank == 0
        if hooks_here:
            checkpoint = {
                **strategy.checkpoint_state(),
                "callbacks": {name: callback.state_dict() for name, callback in callbacks.items()},
                "rng_state": rng,
            }
            for callback in callbacks.values():
                callback.on_checkpoint_save_start(checkpoint)
        strategy.save(path, checkpoint)
        state = {
            "rng_state": rng,
            "data": None if self.data is None else self.data.state_dict(),
            **strategy.rank_state(),
        }
        if strategy.checkpoint_hooks_on_all_ranks:
            state = {**checkpoint, **state}
        torch.save(state, path / f"rank_{rank}.pt")
        if rank == 0:
            save_code(type(strategy.trial), path / "code", self._config_files())
            (path / "load_data.json").write_text(json.dumps(self._load_data(), indent=1), encoding="utf-8")
        if hooks_here:
            for callback in callbacks.values():
                callback.on_checkpoint_end(str(path))
                callback.on_checkpoint_write_end(str(path))

    def _config_files(self) -> list[Path]:
        """Return the files that hyperparameters name and that loading the trial needs."""
        config = (self.context._settings.hparams or {}).get("deepspeed_config")
        return [Path.cwd() / config] if isinstance(config, str) and Path(config).is_file() else []

    def _load_data(self) -> dict[str, Any]:
        settings, kind = self.context._settings, type(self.strategy.trial)
        return {
            "trial_type": type(self.strategy).__name__.replace("Strategy", "Trial"),
            "experiment_config": None if settings.exp_conf is None else jsonable(masked(settings.exp_conf)),
            "hparams": None if settings.hparams is None else jsonable(masked_hparams(settings.hparams)),
            "trial_cls_spec": class_spec(kind),
            "is_trainer": True,
        }

    def find(self, given: str | None) -> Restored | None:
        """Find and verify the checkpoint to start from. Collective.

        Raises:
            InvalidCheckpointException: when there is none such, or it is damaged.
        """
        path = None if given is None else self.store.find(given)
        self.store.start_from(path)
        self.strategy.has_shared_disk = self.store.disks.is_shared
        if path is None:
            return None
        manifest, is_trusted = self.store.verify_origin(path)
        with restricted_load.guarded(path, is_trusted):
            if self.strategy.is_warm_start(path):
                return Restored(path.name, path, {"progress": {"batches": 0}}, {}, True, is_trusted)
            rank = self.context.distributed.rank
            if not manifest:
                facts, state = {"progress": determined_format.progress(path)}, determined_format.rank_state(path, rank)
                return Restored(path.name, path, facts, state, is_trusted=is_trusted)
            state = _rank_state(path, manifest, rank)
        self.policy.best = manifest.get("best_metric")
        return Restored(path.name, path, manifest, state, is_trusted=is_trusted)

    def restore(self, restored: Restored) -> None:
        """Continue from a checkpoint. Collective.

        Raises:
            InvalidCheckpointException: it does not fit the trial, or holds objects that it may not.
        """
        with restricted_load.guarded(restored.path, restored.is_trusted):
            self._restore(restored)

    def _restore(self, restored: Restored) -> None:
        strategy, callbacks = self.strategy, self.strategy.callbacks
        if restored.warm:
            strategy.warm_start(restored.path)
            return
        checkpoint = restored.rank_state if strategy.checkpoint_hooks_on_all_ranks else strategy.read(restored.path)
        for callback in callbacks.values():
            callback.on_checkpoint_load_start(checkpoint)
        strategy.load(restored.path, checkpoint)
        strategy.load_rank_state(restored.rank_state)
        if restored.rank_state.get("rng_state") is not None:
            _rng.set_state(restored.rank_state["rng_state"])
        states = checkpoint.get("callbacks", {})
        for name, callback in callbacks.items():
            if name in states:
                callback.load_state_dict(states[name])
            elif overrides(callback.load_state_dict, PyTorchCallback):
                logger.warning(f"Callback {name!r} has state, but checkpoint {restored.name} has none for it.")
        logger.info(f"Continuing from checkpoint {restored.name} ({restored.progress['batches']} batches).")


def warn_about_deprecated_hooks(callback: PyTorchCallback) -> None:
    """Warn that a callback uses an old hook."""
    if type(callback).on_checkpoint_end is not PyTorchCallback.on_checkpoint_end:
        warnings.warn(
            f"{type(callback).__name__}.on_checkpoint_end is deprecated; define on_checkpoint_write_end.",
            FutureWarning,
            stacklevel=2,
        )


def check_epoch_length(epoch_length: int, micro_batches: int) -> None:
    """Refuse training data with less than one batch.

    Raises:
        InvalidExperimentException: when an epoch holds fewer micro-batches than a batch needs.
    """
    if epoch_length < micro_batches:
        raise InvalidExperimentException(
            f"The training data loader has {epoch_length} micro-batches a rank, but a batch takes {micro_batches} "
            "(gradient_accumulation_steps). Use more data, a smaller micro-batch, or fewer accumulation steps."
        )


def _rank_state(path: Path, manifest: dict[str, Any], rank: int) -> dict[str, Any]:
    """Return what this rank wrote; that of another rank when there were fewer.

    Raises:
        InvalidCheckpointException: the checkpoint does not hold it.
    """
    file = path / f"rank_{rank % int(manifest.get('world_size', 1))}.pt"
    if not file.is_file():
        raise InvalidCheckpointException(f"Checkpoint {path} is damaged: {file.name}: missing.")
    state = restricted_load.read(file)
    if not isinstance(state, dict):
        raise InvalidCheckpointException(f"Checkpoint {path} is damaged: {file.name} holds a {type(state).__name__}.")
    return state


def _versions() -> dict[str, str]:
    versions = {"torch": str(torch.__version__), "python": ".".join(map(str, sys.version_info[:3]))}
    if "deepspeed" in sys.modules:
        versions["deepspeed"] = str(sys.modules["deepspeed"].__version__)
    return versions
