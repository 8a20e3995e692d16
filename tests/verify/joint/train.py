"""An encoder, a decoder and a criterion with a parameter in one optimizer, trained by two functions in turn."""

import torch
from torch.utils.data import DataLoader, TensorDataset


class Uncertain(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.log_scale = torch.nn.Parameter(torch.zeros(1))

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output - target).pow(2).mean() * torch.exp(-self.log_scale).sum() + self.log_scale.sum()


def warm_up() -> None:
    for x, _ in loader:
        optimizer.zero_grad()
        error = criterion(decoder(encoder(x)), x)
        error.backward()
        optimizer.step()


def train() -> None:
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(decoder(encoder(x)), y)
        loss.backward()
        optimizer.step()


torch.manual_seed(0)
data = TensorDataset(torch.randn(48, 4), torch.randn(48, 4))
loader = DataLoader(data, batch_size=4, shuffle=True)
encoder, decoder, criterion = torch.nn.Linear(4, 3), torch.nn.Linear(3, 4), Uncertain()
modules = torch.nn.ModuleList([encoder, decoder, criterion])
optimizer = torch.optim.Adam(modules.parameters(), lr=0.01)
warm_up()
for epoch in range(2):
    train()
    print("epoch", epoch)
