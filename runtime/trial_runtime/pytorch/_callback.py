"""Hooks into training, in the order that :meth:`trial_runtime.pytorch._loop.training_loop.TrainingLoop.run` shows."""

from __future__ import annotations

import warnings
from typing import Any


class PyTorchCallback:
    """Base of a trial's callbacks; override what is needed, in a PyTorchTrial or a DeepSpeedTrial.

    Every rank runs its own copy. The exceptions, for a PyTorchTrial only: ``state_dict``, ``on_checkpoint_save_start``,
    ``on_checkpoint_write_end`` and ``on_checkpoint_end`` run on the chief alone. A callback that has state must give it
    in :meth:`state_dict` and restore it in :meth:`load_state_dict`.
    """

    def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
        """Run before the data loaders are built.

        Args:
            first_batch_idx: index of the first batch to train; not 0 when training is resumed.
            checkpoint_uuid: the checkpoint that is about to be loaded, None when there is none.
        """

    def on_trial_shutdown(self) -> None:
        """Run when training ends, in whatever way; callbacks in reverse order."""

    def on_training_start(self) -> None:
        """Run after a checkpoint was loaded, before the first batch."""

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        """Run before the first batch of an epoch.

        Args:
            epoch_idx: its index, from the start of training.
        """

    def on_training_epoch_end(self, epoch_idx: int) -> None:
        """Run after the last batch of an epoch.

        Args:
            epoch_idx: its index, from the start of training.
        """

    def on_training_workload_end(self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]) -> None:
        """Run after training metrics were reported.

        Args:
            avg_metrics: mean of each metric since the last report, over batches and ranks, and the reducers' metrics.
            batch_metrics: for each micro-batch since the last report, its metrics, averaged over ranks.
        """

    def on_validation_start(self) -> None:
        """Run before a validation."""

    def on_validation_epoch_start(self) -> None:
        """Run before the first validation batch; not with ``evaluate_full_dataset``."""

    def on_validation_epoch_end(self, outputs: list[Any]) -> None:
        """Run after the last validation batch; not with ``evaluate_full_dataset``.

        Args:
            outputs: what ``evaluate_batch`` returned on this rank, tensors as numpy arrays.
        """

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        """Run after a validation.

        Args:
            metrics: the reduced metrics, on every rank.
        """

    def on_checkpoint_load_start(self, checkpoint: dict[str, Any]) -> None:
        """Run before a checkpoint is applied; ``checkpoint`` may be changed in place."""

    def on_checkpoint_save_start(self, checkpoint: dict[str, Any]) -> None:
        """Run before a checkpoint is written; ``checkpoint`` may be changed in place."""

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        """Deprecated spelling of :meth:`on_checkpoint_write_end`."""

    def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
        """Run after the checkpoint's files were written, before it is committed.

        Args:
            checkpoint_dir: the folder; more files may be put there.
        """

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        """Run after the checkpoint ``uuid`` was committed, and uploaded where there is a remote storage.

        The commit runs in a thread: this hook comes at the first report, validation or checkpoint after it has ended,
        before the next save and before training ends.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the state to keep in checkpoints; must be picklable."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""


def warn_about_deprecated_hooks(callback: PyTorchCallback) -> None:
    """Warn that a callback uses an old hook."""
    if type(callback).on_checkpoint_end is not PyTorchCallback.on_checkpoint_end:
        warnings.warn(
            f"{type(callback).__name__}.on_checkpoint_end is deprecated; define on_checkpoint_write_end.",
            FutureWarning,
            stacklevel=2,
        )
