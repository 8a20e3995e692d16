"""A trial for a changing number of ranks: the same global batches on any number, slow enough to be disturbed."""

from __future__ import annotations

import os
import time
from typing import Any

import deepspeed
import torch
from torch import nn
from toys import dataset
from trial_runtime import pytorch
from trial_runtime.pytorch import deepspeed as det_ds

CONFIG = """\
name: elastic
entrypoint: elastic_trial:Trial
hyperparameters: {global_batch_size: 4, stage: 1}
searcher: {name: single, metric: validation_loss, max_length: {batches: 100000}}
min_checkpoint_period: {batches: 5}
scheduling_unit: 2
checkpoint_policy: none
reproducibility: {experiment_seed: 3}
"""


class Trial(det_ds.DeepSpeedTrial):
    def __init__(self, context: Any) -> None:
        self.context = context
        self.size = context.distributed.get_size()
        self.micro = context.get_hparam("global_batch_size") // self.size
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.02)
        config = {
            "train_micro_batch_size_per_gpu": self.micro,
            "gradient_clipping": 0.0,
            "zero_optimization": {"stage": context.get_hparam("stage")},
            "zero_allow_untested_optimizer": True,
        }
        engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=config)
        self.model = context.wrap_model_engine(engine)

    def build_training_data_loader(self) -> Any:
        return pytorch.DataLoader(dataset(40), batch_size=self.micro, shuffle=True)

    def build_validation_data_loader(self) -> Any:
        return pytorch.DataLoader(dataset(16, 2), batch_size=self.micro)

    def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:  # noqa: ARG002
        if os.environ.get("SLURM_RESTART_COUNT", "0") == "0":
            time.sleep(float(os.environ.get("SECONDS_A_BATCH", "0")))
        inputs, targets = self.context.to_device(next(dataloader_iter))
        loss = nn.functional.mse_loss(self.model(inputs), targets)
        self.model.backward(loss)
        self.model.step()
        return {"loss": loss, "ranks": self.size}

    def evaluate_batch(self, dataloader_iter: Any) -> dict[str, Any]:  # type: ignore[override]
        inputs, targets = self.context.to_device(next(dataloader_iter))
        return {"validation_loss": nn.functional.mse_loss(self.model(inputs), targets)}
