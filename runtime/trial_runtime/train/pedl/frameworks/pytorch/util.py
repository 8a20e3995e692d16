"""Metrics of ``pedl``."""

from __future__ import annotations

import torch


def error_rate(predictions: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the share of wrong predictions.

    Args:
        predictions: scores, of shape [samples, classes].
        labels: classes, of shape [samples].
    """
    return 1.0 - (predictions.argmax(1) == labels).float().mean()
