"""Functions that train where they are given an optimizer, and evaluate where they are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from plain_loops import HEADER, convert

BATCH = """\
def loss_batch(model, x, y, opt=None):
    loss = F.mse_loss(model(x), y)
    if opt is not None:
        loss.backward()
        opt.step()
        opt.zero_grad()
    return loss.item(), len(x)


"""
FIT = """\
def fit(model, opt, train_dl, valid_dl):
    TRAIN
    with torch.no_grad():
        losses, nums = zip(*[loss_batch(model, x, yWITHOUT) for x, y in valid_dl])


train_dl, valid_dl = DataLoader(data, batch_size=4, shuffle=True), DataLoader(data, batch_size=8)
model = Net()
fit(model, torch.optim.SGD(model.parameters(), lr=0.1), train_dl, valid_dl)
"""


@pytest.mark.parametrize("without", ["", ", None", ", opt=None"])
@pytest.mark.parametrize(
    "train",
    [
        "for x, y in train_dl:\n        loss_batch(model, x, y, opt)",
        "losses, nums = zip(*[loss_batch(model, x, y, opt) for x, y in train_dl])",
    ],
)
def test_a_function_that_evaluates_without_an_optimizer_calls_the_module(
    train: str, without: str, tmp_path: Path
) -> None:
    after = convert(tmp_path, HEADER + BATCH + FIT.replace("TRAIN", train).replace("WITHOUT", without))
    assert "loss = F.mse_loss(model(x), y)\n    if engine is not None:\n        engine.backward(loss)" in after
    assert "shard(DataLoader(data, batch_size=4, shuffle=True)), DataLoader(data, batch_size=8)" in after


def test_a_function_that_always_trains_calls_the_engine(tmp_path: Path) -> None:
    train = "for x, y in train_dl:\n        loss_batch(model, x, y, opt)"
    fit = FIT.replace("TRAIN", train).replace("loss_batch(model, x, yWITHOUT)", "(model(x).mean().item(), 1)")
    text = HEADER + BATCH.replace("opt=None", "opt").replace("if opt is not None", "if True") + fit
    assert "loss = F.mse_loss(engine(x), y)" in convert(tmp_path, text)
