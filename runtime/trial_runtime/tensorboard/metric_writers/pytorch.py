"""PyTorch's writer of TensorBoard files."""

from __future__ import annotations

from typing import Any

from trial_runtime.tensorboard.base import MetricWriter, default_directory


class TorchWriter(MetricWriter):
    """A ``torch.utils.tensorboard.SummaryWriter`` of the run's TensorBoard directory, as ``writer``.

    Also ``context.get_tensorboard_writer()`` gives such a writer.
    """

    def __init__(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer: Any = SummaryWriter(log_dir=str(default_directory()))

    def add_scalar(self, name: str, value: Any, step: int) -> None:
        """Write a number."""
        self.writer.add_scalar(name, value, step)

    def reset(self) -> None:
        """Close the present file; the next write begins another one."""
        self.writer.close()

    def flush(self) -> None:
        """Bring what was written to disk."""
        self.writer.flush()
