"""Lengths and periods of training."""

from __future__ import annotations

from collections.abc import Container


class TrainUnit:
    """A length, a period or a schedule, in batches or epochs.

    Args:
        value: an int is a period (or, as ``max_length``, a length); a container of ints is a schedule: the counts at
            which something happens.
    """

    unit = "steps"

    def __init__(self, value: int | Container[int]) -> None:
        self.value = value

    def should_stop(self, step_num: int) -> bool:
        """Return whether ``step_num`` finished steps are such a point. A period below 1 means every step."""
        if not isinstance(self.value, int):
            return step_num in self.value
        if self.value < 1:
            return True
        return step_num > 0 and step_num % self.value == 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value!r})"


class Epoch(TrainUnit):
    """Passes over the training data, counted in batches of the training loader."""

    unit = "epochs"


class Batch(TrainUnit):
    """Batches: calls of ``train_batch`` for a PyTorchTrial, optimizer steps for a DeepSpeedTrial."""

    unit = "batches"

    @staticmethod
    def _from_records(records: int, global_batch_size: int) -> Batch:
        return Batch(max(records // global_batch_size, 1))
