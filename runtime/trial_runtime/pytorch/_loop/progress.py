"""Counts of a training: the only place that has them."""

from __future__ import annotations

import dataclasses
from typing import Any

from trial_runtime.pytorch._train_units import Batch, Epoch, TrainUnit


@dataclasses.dataclass
class Progress:
    """Batches trained, and everything that follows from them.

    A *batch* is one optimizer step's worth of ``micro_batches`` batches of the training loader (1 for a PyTorchTrial).
    It belongs to the epoch of its last micro-batch, the one on which the optimizer steps; so an epoch of
    ``epoch_length`` micro-batches ends after the same number of optimizer steps for both kinds of trial, also when
    ``micro_batches`` does not divide it.

    Attributes:
        batches: batches trained since the start of training, over all resumes.
        last_validation, last_checkpoint, last_report: ``batches`` at the latest of each.
        micro_batches: loader batches a batch.
        epoch_length: loader batches an epoch on the chief; None when the loader has no length: all is epoch 0.
    """

    batches: int = 0
    last_validation: int = 0
    last_checkpoint: int = 0
    last_report: int = 0
    micro_batches: int = 1
    epoch_length: int | None = None

    def epoch_of(self, batch_idx: int) -> int:
        """Return the epoch that the batch with this index belongs to."""
        if self.epoch_length is None:
            return 0
        return ((batch_idx + 1) * self.micro_batches - 1) // self.epoch_length

    def epoch_of_micro_batch(self, micro_idx: int) -> int:
        """Return the epoch that the micro-batch with this index, counted from the start of training, belongs to."""
        return 0 if self.epoch_length is None else micro_idx // self.epoch_length

    @property
    def epochs(self) -> int:
        """Return the number of finished epochs."""
        return self.epoch_of(self.batches)

    @property
    def at_epoch_start(self) -> bool:
        """Return whether the next batch is the first of an epoch."""
        return self.batches == 0 or self.epoch_of(self.batches) > self.epoch_of(self.batches - 1)

    @property
    def at_epoch_end(self) -> bool:
        """Return whether the latest batch was the last of an epoch."""
        return self.batches > 0 and self.at_epoch_start

    def batches_of_epochs(self, epochs: int) -> int | None:
        """Return ``batches`` at the end of this many epochs; None when an epoch's length is not known."""
        if self.epoch_length is None:
            return None
        # The smallest count b with epoch_of(b) >= epochs.
        return max(0, -(-(epochs * self.epoch_length + 1) // self.micro_batches) - 1)

    def due(self, period: TrainUnit | None) -> bool:
        """Return whether ``period`` is due at this batch. None: never."""
        if isinstance(period, Epoch):
            return self.at_epoch_end and period.should_stop(self.epochs)
        return period is not None and period.should_stop(self.batches)

    def reached(self, length: TrainUnit) -> bool:
        """Return whether ``length`` (with an int value) has been trained."""
        assert isinstance(length.value, int)
        return (self.batches if isinstance(length, Batch) else self.epochs) >= length.value

    def state_dict(self) -> dict[str, Any]:
        """Return the counts that a checkpoint keeps."""
        return {
            "batches": self.batches,
            "epochs": self.epochs,
            "last_validation": self.last_validation,
            "last_checkpoint": self.last_checkpoint,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from counts that :meth:`state_dict` gave."""
        self.batches = self.last_report = int(state["batches"])
        self.last_validation = int(state.get("last_validation", 0))
        self.last_checkpoint = int(state.get("last_checkpoint", 0))
