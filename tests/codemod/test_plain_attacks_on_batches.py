"""Plain training loops that attack their batches by an optimizer, as TRADES does."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from plain_loops import HEADER, LOOP, run

ATTACK = """
def attack(model, x, optimizer, steps=3):
    model.eval()
    delta = 0.001 * torch.randn(x.shape).detach()
    delta = torch.autograd.Variable(delta.data, requires_grad=True)
    mover = torch.optim.SGD([delta], lr=0.1)
    for _ in range(steps):
        mover.zero_grad()
        loss = -F.mse_loss(model(x + delta), model(x))
        loss.backward()
        norms = delta.grad.view(len(x), -1).norm(p=2, dim=1)
        delta.grad.div_(norms.view(-1, 1))
        mover.step()
        delta.data.clamp_(0, 1)
    model.train()
    optimizer.zero_grad()
    return x + delta.detach()


"""
ATTACKED = HEADER + ATTACK + LOOP.replace("model(x)", "model(attack(model, x, optimizer))")


def results(folder: Path, text: str) -> tuple[str, list[str], list[str]]:
    """Return the new text of a module, its reviews, and why it stays."""
    report = run(folder, train=text)
    (result,) = report.files
    reviews, blocks = (
        [found.message for _, found in report.findings(severity)] for severity in (Severity.REVIEW, Severity.BLOCKED)
    )
    return (result.after or b"").decode(), reviews, blocks


def test_an_attack_stays_as_it_is(tmp_path: Path) -> None:
    after, reviews, _ = results(tmp_path, ATTACKED)
    assert after.count("deepspeed.initialize(") == 1
    assert ATTACK in after and "    engine.backward(loss, scale_wrt_gas=False)\n    engine.step()\n" in after
    assert any("mover.step() stays as it is: it moves a tensor that is made from each batch" in r for r in reviews)


def test_an_attack_in_the_training_loop_stays_as_it_is(tmp_path: Path) -> None:
    inner = """\
    delta = torch.zeros_like(x, requires_grad=True)
    mover = torch.optim.Adam([delta], lr=0.1)
    for _ in range(3):
        mover.zero_grad()
        (-F.mse_loss(model(x + delta), y)).backward()
        mover.step()
    optimizer.zero_grad()
"""
    after, reviews, _ = results(tmp_path, HEADER + LOOP.replace("    optimizer.zero_grad()\n", inner))
    assert "        mover.step()\n    optimizer.zero_grad()\n" in after and after.count("deepspeed.initialize(") == 1
    assert any("mover.step() stays as it is" in review for review in reviews)


def test_an_optimizer_of_an_attack_that_nothing_trains_beside_is_no_attack(tmp_path: Path) -> None:
    text = HEADER + ATTACK + "optimizer = None\nattack(Net(), torch.zeros(4, 4), optimizer)\n"
    assert "stays as it is: it moves" not in str(results(tmp_path, text))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("torch.randn(x.shape)", "torch.randn(4)"),
        ("torch.randn(x.shape)", "torch.randn(model.fc.weight.shape)"),
        ("for _ in range(steps):", "for x, _ in DataLoader(data, batch_size=4):"),
        ("        mover.zero_grad()", "        x = next(batches)\n        mover.zero_grad()"),
        ("[delta]", "[*model.parameters(), delta]"),
        ("    model.train()", "    model.mover = mover\n    model.train()"),
    ],
)
def test_an_optimizer_that_may_train_more_than_a_batch_is_no_attack(old: str, new: str, tmp_path: Path) -> None:
    after, _, blocks = results(tmp_path, ATTACKED.replace(old, new))
    assert not after and blocks


def test_a_tensor_with_the_shape_of_a_weight_is_no_batch(tmp_path: Path) -> None:
    moved = "for x, y in loader:\n    for weight in model.parameters():\n        attack(model, weight, optimizer)\n"
    after, _, blocks = results(tmp_path, HEADER + ATTACK + LOOP.replace("for x, y in loader:\n", moved))
    assert not after and blocks


HANDED_ON = """
class Attack:
    def __init__(self, model):
        self.model = model

    def move(self, mover, x, delta):
        mover.zero_grad()
        loss = -self.model(x + delta).mean()
        loss.backward()
        mover.step()
        return loss

    def perturb(self, x):
        delta = nn.Parameter(torch.zeros_like(x))
        mover = torch.optim.Adam([delta], lr=0.1)
        for _ in range(3):
            self.move(mover, x, delta)
        return x + delta.detach()


"""
CALLED = LOOP.replace("model(x)", "model(Attack(model).perturb(x))")


@pytest.mark.parametrize("loop", [CALLED, LOOP], ids=["called", "called by nothing here"])
def test_an_attack_that_hands_its_optimizer_to_a_function_stays_as_it_is(loop: str, tmp_path: Path) -> None:
    after, reviews, _ = results(tmp_path, HEADER + HANDED_ON + loop)
    assert HANDED_ON in after and after.count("deepspeed.initialize(") == 1 and "    engine.step()\n" in after
    assert any("mover.step() stays as it is: it moves" in review for review in reviews)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("        return loss\n", "        self.mover = mover\n        return loss\n"),
        ("        mover.zero_grad()\n", "        mover.zero_grad()\n        helper.train(mover)\n"),
        ("self.move(mover, x, delta)", "self.move(mover, next(batches), delta)"),
        ("nn.Parameter(torch.zeros_like(x))", "x.detach().requires_grad_()"),
    ],
)
def test_a_handed_on_optimizer_that_may_do_more_is_no_attack(old: str, new: str, tmp_path: Path) -> None:
    assert "stays as it is: it moves" not in str(results(tmp_path, HEADER + HANDED_ON.replace(old, new) + LOOP))
