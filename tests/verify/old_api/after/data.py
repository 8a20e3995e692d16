"""A small stand-in for MNIST, so that the example needs no download."""

from typing import Tuple

import torch
from torch.utils.data import Dataset

# Ten 12x12 patterns are drawn from this seed; every image is one of them, shifted a little, with noise.
SHAPES_SEED = 1998


class SyntheticDigits(Dataset):
    """``size`` grey images of shape (1, 14, 14) with their class, 0 to 9."""

    def __init__(self, size: int, train: bool) -> None:
        shapes = (torch.rand(10, 12, 12, generator=torch.Generator().manual_seed(SHAPES_SEED)) > 0.6).float()
        generator = torch.Generator().manual_seed(0 if train else 1)
        self.labels = torch.randint(10, (size,), generator=generator)
        self.images = 0.3 * torch.randn(size, 1, 14, 14, generator=generator)
        for index, label in enumerate(self.labels.tolist()):
            row, column = torch.randint(3, (2,), generator=generator).tolist()
            self.images[index, 0, row : row + 12, column : column + 12] += shapes[label]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Tuple[torch.Tensor, torch.Tensor]:
        return self.images[index], self.labels[index]
