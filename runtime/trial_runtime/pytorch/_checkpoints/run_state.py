"""Content of a run's checkpoint, and resuming from it."""

from __future__ import annotations

import json
import logging
import sys
import uuid
from pathlib import Path
from typing import Any

import torch

from trial_runtime._redaction import masked, masked_hparams
from trial_runtime.pytorch._callback import PyTorchCallback
from trial_runtime.pytorch._checkpoints import determined_format, restricted_load
from trial_runtime.pytorch._checkpoints.commit import Commit
from trial_runtime.pytorch._checkpoints.policy import CheckpointPolicy
from trial_runtime.pytorch._checkpoints.restored import Restored, read_rank_state
from trial_runtime.pytorch._checkpoints.store import CheckpointStore
from trial_runtime.pytorch._checkpoints.trial_code import class_spec, save_code
from trial_runtime.pytorch._data import rng as _rng
from trial_runtime.pytorch._data.training_data import TrainingData
from trial_runtime.pytorch._loop.strategy import Strategy, overrides
from trial_runtime.pytorch._reporting.aggregation import jsonable
from trial_runtime.pytorch._reporting.sinks import ROUTINE, MetricsSink

logger = logging.getLogger("trial_runtime.pytorch")


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
            state = read_rank_state(path, manifest, rank)
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


def _versions() -> dict[str, str]:
    versions = {"torch": str(torch.__version__), "python": ".".join(map(str, sys.version_info[:3]))}
    if "deepspeed" in sys.modules:
        versions["deepspeed"] = str(sys.modules["deepspeed"].__version__)
    return versions
