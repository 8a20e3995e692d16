"""Proof of a plain loop whose GradScaler is kept by an object, over two files: MAE, Swin and ConvNeXt train so."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_verify.cli import main
from ds_verify.exit_codes import SAME

SCALER = """\
import torch


class NativeScaler:
    def __init__(self):
        self._scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)

    def __call__(self, loss, optimizer, clip_grad=None, parameters=None, create_graph=False, update_grad=True):
        self._scaler.scale(loss).backward(create_graph=create_graph)
        if update_grad:
            self._scaler.unscale_(optimizer)
            if clip_grad is not None:
                norm = torch.nn.utils.clip_grad_norm_(parameters, clip_grad)
            else:
                norm = torch.stack([p.grad.norm() for p in parameters]).norm()
            self._scaler.step(optimizer)
            self._scaler.update()
        else:
            norm = None
        return norm
"""
# The norm that the loop gets is kept in a buffer, which the proof compares.
SCRIPT = """\
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from scaling import NativeScaler


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
        self.register_buffer("norm", torch.zeros(()))

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def groups(model):
    decay = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    return [{"params": decay, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]


def train_one_epoch(model, loader, optimizer, loss_scaler, limit, accum_iter=2):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        loss = torch.nn.functional.mse_loss(model(x), y) / accum_iter
        is_last = (i + 1) % accum_iter == 0
        if limit is None:
            loss.backward()
            if is_last:
                optimizer.step()
        else:
            is_second_order = hasattr(optimizer, "is_second_order") and optimizer.is_second_order
            norm = loss_scaler(loss, optimizer, limit, model.parameters(), is_second_order, is_last)
            if norm is not None:
                getattr(model, "module", model).norm.fill_(norm)
        if is_last:
            optimizer.zero_grad()


def main():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
    model = Net()
    sampler = None
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler, shuffle=sampler is None)
    optimizer = torch.optim.AdamW(groups(model), lr=0.01)
    if "RANK" in os.environ:
        model = DistributedDataParallel(model, broadcast_buffers=False)
    loss_scaler = NativeScaler()
    for limit in (0.05, None, 10.0):
        train_one_epoch(model, loader, optimizer, loss_scaler, limit)


main()
"""


@pytest.mark.slow
def test_a_scaler_that_an_object_keeps_trains_as_it_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "scaling.py").write_text(SCALER)
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    found = main(["--plain", "--no-report", "--steps", "24", "train.py"])
    printed = capsys.readouterr().out
    assert found == SAME, printed
    assert "same: 24 and 12 steps with 1 and 2 ranks" in printed
