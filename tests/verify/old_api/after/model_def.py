"""
This example shows how to interact with the Determined PyTorch interface to
build a basic MNIST network.
"""

from pathlib import Path
from typing import Any, Dict, Iterator, Tuple, cast

import deepspeed
import torch
import torch.nn as nn
from torch.nn import functional as F

import data
import trial_runtime as det
from trial_runtime.pytorch import (
    DataLoader,
    LRScheduler,
    PyTorchCallback,
    TorchData,
)
from trial_runtime.pytorch.deepspeed import DeepSpeedTrial, overwrite_deepspeed_config


def error_rate(predictions: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the share of wrong predictions."""
    return 1.0 - (predictions.argmax(1) == labels).float().mean()


class BestError(PyTorchCallback):
    def __init__(self) -> None:
        self.best = 1.0

    def on_validation_end(self, metrics: Dict[str, Any]) -> None:
        self.best = min(self.best, float(metrics["validation_error"]))


class MNistTrial(DeepSpeedTrial):
    def __init__(self, context: det.TrialContext) -> None:
        self.context = context
        # Both loaders share the data.
        self.train_set = data.SyntheticDigits(192, train=True)
        self.validation_set = data.SyntheticDigits(64, train=False)
        self.model = self.build_model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.context.get_hparam("learning_rate"), momentum=0.9)
        self.lr_scheduler = self.context.wrap_lr_scheduler(
            self.create_lr_scheduler(self.optimizer),
            LRScheduler.StepMode.STEP_EVERY_OPTIMIZER_STEP,
        )
        hparams = self.context.get_hparams()
        ds_config = overwrite_deepspeed_config(
            hparams.get("deepspeed_config", str(Path(__file__).with_name("ds_config.json"))),
            {
                "train_micro_batch_size_per_gpu": self.context.get_per_slot_batch_size(),
                "gradient_clipping": self.context.get_hparam("clip_norm"),
                **hparams.get("overwrite_deepspeed_args", {}),
            },
        )
        engine, self.optimizer, _, _ = deepspeed.initialize(
            model=self.model, optimizer=self.optimizer, config=ds_config
        )
        self.model = self.context.wrap_model_engine(engine)

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

    def create_lr_scheduler(self, optimizer: torch.optim.Optimizer):
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.9)
        return scheduler

    def build_callbacks(self) -> Dict[str, PyTorchCallback]:
        return {
            "best": BestError(),
        }

    def train_batch(
        self, dataloader_iter: Iterator[TorchData], epoch_idx: int, batch_idx: int
    ) -> Dict[str, torch.Tensor]:
        batch = cast(Tuple[torch.Tensor, torch.Tensor], self.context.to_device(next(dataloader_iter)))
        images, labels = batch

        output = self.model(images)
        loss = F.nll_loss(output, labels)

        # The learning rate is the one that this batch is trained with.
        metrics = {
            "loss": loss,
            "train_error": error_rate(output, labels),
            "lr": self.optimizer.param_groups[0]["lr"],
        }
        self.model.backward(loss)
        self.model.step()
        return metrics

    def evaluate_batch(self, dataloader_iter: Iterator[TorchData]) -> Dict[str, Any]:
        images, labels = cast(Tuple[torch.Tensor, torch.Tensor], self.context.to_device(next(dataloader_iter)))
        output = self.model(images)
        return {"validation_loss": F.nll_loss(output, labels), "validation_error": error_rate(output, labels)}

    def build_training_data_loader(self) -> DataLoader:
        return DataLoader(self.train_set, batch_size=self.context.get_train_micro_batch_size_per_gpu(), shuffle=True)

    def build_validation_data_loader(self) -> DataLoader:
        return DataLoader(self.validation_set, batch_size=self.context.get_train_micro_batch_size_per_gpu())
