"""A stand-in for the file that an example of pytorch_warmup asks its users to download."""

from __future__ import annotations

import torch


def resnet20() -> torch.nn.Module:
    """Return a small network for images of shape (3, 32, 32), with what a residual network has in it."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, stride=4),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(32, 10),
    )
