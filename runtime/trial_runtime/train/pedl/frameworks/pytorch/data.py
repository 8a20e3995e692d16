"""Loaders of ``pedl``."""

from trial_runtime.pytorch import DataLoader, TorchData

__all__ = ["DataLoader", "TorchData"]
