"""
This example shows how to interact with the Determined PyTorch interface to
build a basic MNIST network.
"""

from typing import Any, Dict, Tuple, cast

import torch
import torch.nn as nn
from torch.nn import functional as F

import data
import determined as det
from determined.pytorch import (
    ClipGradsL2Norm,
    DataLoader,
    LRScheduler,
    PyTorchCallback,
    PyTorchTrial,
    TorchData,
)


def error_rate(predictions: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the share of wrong predictions."""
    return 1.0 - (predictions.argmax(1) == labels).float().mean()


class BestError(PyTorchCallback):
    def __init__(self) -> None:
        self.best = 1.0

    def on_validation_end(self, metrics: Dict[str, Any]) -> None:
        self.best = min(self.best, float(metrics["validation_error"]))


class MNistTrial(PyTorchTrial):
    def __init__(self, context: det.TrialContext) -> None:
        self.context = context
        # Both loaders share the data.
        self.train_set = data.SyntheticDigits(192, train=True)
        self.validation_set = data.SyntheticDigits(64, train=False)

    def build_model(self) -> nn.Module:
        filters = self.context.get_hparam("n_filters")
        model = nn.Sequential(
            nn.Conv2d(1, filters, kernel_size=5),
            nn.MaxPool2d(2),
            nn.BatchNorm2d(filters),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(self.context.get_hparam("dropout")),
            nn.Linear(25 * filters, 10),
            nn.LogSoftmax(dim=1),
        )
        # Small weights at the start.
        for parameter in model.parameters():
            parameter.data.mul_(0.9)
        return model

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=self.context.get_hparam("learning_rate"), momentum=0.9)

    def create_lr_scheduler(self, optimizer: torch.optim.Optimizer) -> LRScheduler:
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.9)
        return LRScheduler(scheduler, step_mode=LRScheduler.StepMode.STEP_EVERY_BATCH)

    def build_callbacks(self) -> Dict[str, PyTorchCallback]:
        return {
            "clip_grads": ClipGradsL2Norm(self.context.get_hparam("clip_norm")),
            "best": BestError(),
        }

    def train_batch(
        self, batch: TorchData, model: nn.Module, epoch_idx: int, batch_idx: int
    ) -> Dict[str, torch.Tensor]:
        batch = cast(Tuple[torch.Tensor, torch.Tensor], batch)
        images, labels = batch

        output = model(images)
        loss = F.nll_loss(output, labels)

        # The learning rate is the one that this batch is trained with.
        return {
            "loss": loss,
            "train_error": error_rate(output, labels),
            "lr": self.context.get_optimizer().param_groups[0]["lr"],
        }

    def evaluate_batch(self, batch: TorchData, model: nn.Module) -> Dict[str, Any]:
        images, labels = cast(Tuple[torch.Tensor, torch.Tensor], batch)
        output = model(images)
        return {"validation_loss": F.nll_loss(output, labels), "validation_error": error_rate(output, labels)}

    def build_training_data_loader(self) -> DataLoader:
        return DataLoader(self.train_set, batch_size=self.context.get_per_slot_batch_size(), shuffle=True)

    def build_validation_data_loader(self) -> DataLoader:
        return DataLoader(self.validation_set, batch_size=self.context.get_per_slot_batch_size())
