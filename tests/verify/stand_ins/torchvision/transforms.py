"""Transforms of torchvision's names, for images that are tensors already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


class Compose:
    """Transforms, one after the other."""

    def __init__(self, transforms: Sequence[Callable[[torch.Tensor], torch.Tensor]]) -> None:
        self.transforms = transforms

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        for transform in self.transforms:
            image = transform(image)
        return image


class _Same:
    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return image


class ToTensor(_Same):
    """Nothing: the images are tensors."""


class RandomCrop(_Same):
    """Nothing: both sides of a comparison see the whole image."""


class RandomHorizontalFlip:
    """A flip, drawn from torch's generator as torchvision does."""

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return image.flip(-1) if torch.rand(1) < 0.5 else image


class Normalize:
    """Images of a given mean and standard deviation."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self.mean, self.std = (torch.tensor(each).view(-1, 1, 1) for each in (mean, std))

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return (image - self.mean) / self.std
