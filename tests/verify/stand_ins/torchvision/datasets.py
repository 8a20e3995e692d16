"""Data sets of torchvision's names: a few images that are drawn from a fixed seed, with labels that they show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import Dataset

Transform = Callable[[Any], torch.Tensor]


class _Images(Dataset[tuple[torch.Tensor, int]]):
    shape = (1, 28, 28)
    classes = 10

    def __init__(self, root: str, *args: Any, train: bool = True, transform: Transform | None = None, **_: Any) -> None:
        del root, args
        count = 192 if train else 32
        drawn = torch.Generator().manual_seed(int(train))
        self.labels = torch.randint(self.classes, (count,), generator=drawn)
        self.images = torch.rand(count, *self.shape, generator=drawn) + self.labels.view(-1, 1, 1, 1) / self.classes
        self.transform = transform

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = self.images[index]
        return image if self.transform is None else self.transform(image), int(self.labels[index])


class MNIST(_Images):
    """Grey images of ten classes."""


class EMNIST(_Images):
    """Grey images of 47 classes."""

    classes = 47


class CIFAR10(_Images):
    """Coloured images of ten classes."""

    shape = (3, 32, 32)
