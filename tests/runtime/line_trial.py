"""A trial as source text, for programs that ds-train starts, and the variables that these get."""

from __future__ import annotations

import os

from trial_runtime._cluster_info import ENV_VAR
from trial_runtime._ranks import without_ranks

LINE_TRIAL = """
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 16
    def __getitem__(self, index):
        return torch.full((2,), float(index % 4)), torch.tensor([float(index % 4)])

class LineTrial(PyTorchTrial):
    def __init__(self, context: PyTorchTrialContext) -> None:
        self.context = context
        self.model = context.wrap_model(torch.nn.Linear(2, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=context.get_hparam("lr")))
    def build_training_data_loader(self):
        return DataLoader(Data(), batch_size=self.context.get_per_slot_batch_size())
    build_validation_data_loader = build_training_data_loader
    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = torch.nn.functional.mse_loss(self.model(batch[0]), batch[1])
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}
    def evaluate_batch(self, batch):
        return {"val_loss": torch.nn.functional.mse_loss(self.model(batch[0]), batch[1])}
"""
"""The classes ``Data`` and ``LineTrial``; hyperparameters: ``lr`` and ``global_batch_size``."""


def user_environment() -> dict[str, str]:
    """Return the variables of a user's shell: of no run and no rank, one thread, no GPU."""
    environment = {name: value for name, value in without_ranks(os.environ).items() if name != ENV_VAR}
    return {**environment, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
