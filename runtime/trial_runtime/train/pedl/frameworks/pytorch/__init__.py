"""The API of ``determined.pytorch``, as it was called in 2019."""

from trial_runtime.pytorch import (
    DataLoader,
    LRScheduler,
    PyTorchCallback,
    PyTorchTrial,
    TorchData,
    reset_parameters,
)

__all__ = ["DataLoader", "LRScheduler", "PyTorchCallback", "PyTorchTrial", "TorchData", "reset_parameters"]
