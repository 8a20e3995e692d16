"""Interface of metric writers, and the directory of a run's files."""

from __future__ import annotations

import abc
from pathlib import Path
from typing import Any

from trial_runtime._cluster_info import get_cluster_info


class MetricWriter(abc.ABC):
    """Writer of scalars by name and step."""

    @abc.abstractmethod
    def add_scalar(self, name: str, value: Any, step: int) -> None:
        """Write a number."""

    @abc.abstractmethod
    def reset(self) -> None:
        """End the present file; the next write begins another one."""

    @abc.abstractmethod
    def flush(self) -> None:
        """Bring what was written to disk."""


def default_directory() -> Path:
    """Return the run's TensorBoard directory under ``ds-train``, else ``tensorboard`` in the working directory."""
    info = get_cluster_info()
    return Path("tensorboard") if info is None else info.run.tensorboard_directory
