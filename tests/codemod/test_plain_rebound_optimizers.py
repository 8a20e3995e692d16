"""Optimizers of plain training loops that one name holds in turn, as one of a list of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from plain_loops import blocked, body, convert

EACH = """
    a, b = Net(), Net()
    optimizers = []
    for model in (a, b):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        optimizers.append(optimizer)
    for x, y in DataLoader(data, batch_size=4):
        TAKEN
            STEP
    """
PASSED = """
    def make(model):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        return optimizer


    def train(model, optimizer):
        for x, y in DataLoader(data, batch_size=4):
            STEP


    optimizers = []
    for model in (Net(), Net()):
        optimizer = make(model)
        optimizers.append((model, optimizer))
    for model, optimizer in optimizers:
        train(model, optimizer)
    """
TAUGHT = """
    a, b = Net(), Net()
    for model in (a, b):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        other = b if model is a else a
        for x, y in DataLoader(data, batch_size=4):
            loss = F.mse_loss(model(x), other(x).detach())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    """


@pytest.mark.parametrize(
    "taken",
    [
        "for i in range(2):\n            model, optimizer = (a, b)[i], optimizers[i]",
        "for i in range(2):\n            model = (a, b)[i]\n            optimizer = optimizers[i]",
        "for model, optimizer in zip((a, b), optimizers):",
    ],
)
def test_each_optimizer_of_a_list_steps_by_its_own_engine(taken: str, tmp_path: Path) -> None:
    after = convert(tmp_path, body(EACH.replace("TAKEN", taken)))
    assert "        engine_of(optimizer).step()\n" in after and "engine.backward" not in after
    assert "F.mse_loss(model(x), y).backward()\n" in after


def test_a_function_gets_each_optimizer_of_a_list(tmp_path: Path) -> None:
    after = convert(tmp_path, body(PASSED))
    assert "def train(model, optimizer):" in after and "engine_of(optimizer).step()\n" in after


def test_another_model_is_not_called_by_the_engine_of_this_one(tmp_path: Path) -> None:
    after = convert(tmp_path, body(TAUGHT))
    assert "loss = F.mse_loss(model(x), other(x).detach())" in after and "        engine.step()\n" in after


CLIPPED = """
    def fit(objectives, scaled):
        models = [model for _, model in objectives]
        scaler = torch.cuda.amp.GradScaler()
        optimizers = []
        for model in models:
            named = list(model.named_parameters())
            groups = [{"params": [p for n, p in named if "bias" in n], "weight_decay": 0.1}]
            optimizer = torch.optim.AdamW(groups, lr=0.1)
            optimizers.append(optimizer)
        for model in models:
            model.train()
        iterators = [iter(loader) for loader, _ in objectives]
        for step in range(2):
            for i in range(len(models)):
                model = models[i]
                optimizer = optimizers[i]
                x, y = next(iterators[i])
                if scaled:
                    scaler.scale(F.mse_loss(model(x), y)).backward()
                    scaler.unscale_(optimizer)
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    scaler.step(optimizer)
                    scaler.update()
                else:
                    F.mse_loss(model(x), y).backward()
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    BETWEEN
                    optimizer.step()
                optimizer.zero_grad()


    fit([(DataLoader(data, batch_size=4), Net()), (DataLoader(data, batch_size=2), nn.Linear(4, 1))], False)
    """


def test_gradients_are_averaged_by_the_engine_of_the_optimizer_that_steps_next(tmp_path: Path) -> None:
    after = convert(tmp_path, body(CLIPPED.replace("BETWEEN", "pass")))
    assert after.count("engine_of(optimizer).allreduce_gradients()\n") == 2
    assert after.count("engine_of(optimizer).step()\n") == 2
    assert "model=model,\n" in after


def test_an_optimizer_that_is_taken_behind_the_clipping_averages_nothing_before_it(tmp_path: Path) -> None:
    messages = blocked(tmp_path, body(CLIPPED.replace("BETWEEN", "optimizer = optimizers[i]")))
    assert any("before gradients are averaged over ranks" in message for _, message in messages)
