"""Numbers that plain loops carry from batch to batch into their losses."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from plain_loops import HEADER, run

SETUP = """\
import numpy as np
loader = DataLoader(data, batch_size=4, shuffle=True)
MAKE_MODEL
"""
STEP = "optimizer.zero_grad()\nloss.backward()\noptimizer.step()\n"


def _loop(before: str, lines: str) -> str:
    body = textwrap.indent(f"out = model(x)\n{lines}{STEP}", "        ")
    return f"{SETUP}{before}for epoch in range(3):\n    for x, y in loader:\n{body}"


def _carried(text: str, tmp_path: Path) -> list[str]:
    found = [f.message for _, f in run(tmp_path, train=HEADER + text).findings(Severity.REVIEW)]
    return [message.split(" ")[5] for message in found if message.endswith("one after the other, for the loss")]


@pytest.mark.parametrize(
    ("before", "lines", "name"),
    [
        ("base = 0.0\n", "base = 0.9 * base + 0.1 * y.mean().item()\nloss = ((out - base) ** 2).mean()\n", "base"),
        (
            "beta = 1.0\n",
            "kl = out.pow(2).mean()\nloss = F.mse_loss(out, y) + beta * kl\nif kl.item() > 0.5:\n    beta *= 1.5\n",
            "beta",
        ),
        (
            "cost = np.ones(3)\n",
            "one = F.mse_loss(out, y)\nloss = one * cost[epoch - 1]\ncost[epoch] += one.item()\n",
            "cost",
        ),
        (
            "w = torch.ones(2)\n",
            "each = (out - y) ** 2\nloss = (each * w[y.long()]).mean()\nw[1] = w[1] - each.mean().item()\n",
            "w",
        ),
    ],
)
def test_a_factor_that_follows_the_losses_of_a_share_is_for_review(
    before: str, lines: str, name: str, tmp_path: Path
) -> None:
    assert _carried(_loop(before, lines), tmp_path) == [name]


TRAINER = """\
class Trainer:
    def __init__(self):
        self.weight = 1.0

    def loss(self, out, y):
        return F.mse_loss(out, y) * self.weight

    def follow(self, number):
        UPDATE


trainer = Trainer()
"""


@pytest.mark.parametrize(
    ("update", "names"),
    [
        ("self.weight = 0.9 * self.weight + 0.1 * number", ["self.weight"]),
        ("self.weight += number", ["self.weight"]),
        ("new = self.weight + number\n        self.weight = max(new, 0.1)", ["self.weight"]),
        ("self.weight = number", []),
        ("self.weight = 0.9 * self.weight", []),
    ],
)
def test_an_attribute_that_follows_the_losses_of_a_share_is_for_review(
    update: str, names: list[str], tmp_path: Path
) -> None:
    text = _loop(TRAINER.replace("UPDATE", update), "loss = trainer.loss(out, y)\ntrainer.follow(loss.item())\n")
    assert _carried(text, tmp_path) == names


@pytest.mark.parametrize(
    ("before", "lines"),
    [
        ("total = 0.0\n", "loss = F.mse_loss(out, y)\ntotal += loss.item()\n"),
        ("state = torch.zeros(4)\n", "state, other = out, out\nstate = state * 2\nloss = (other * state).mean()\n"),
        ("", "y = y - y.mean()\nloss = (out * y).abs().mean()\n"),
        ("", "loss = 0.0\nfor k in range(2):\n    loss = loss + F.mse_loss(out, y) * k\nloss += out.mean()\n"),
        ("beta = 1.0\n", "loss = F.mse_loss(out, y) * beta\nbeta *= 0.9\n"),
    ],
)
def test_what_begins_with_each_batch_or_is_alike_on_all_ranks_is_no_review(
    before: str, lines: str, tmp_path: Path
) -> None:
    assert _carried(_loop(before, lines), tmp_path) == []


@pytest.mark.parametrize(
    ("over", "names"), [("losses", []), ("[(F.mse_loss(model(x), y)) for x, y in loader]", ["total"])]
)
def test_a_total_of_the_losses_of_one_batch_in_a_function_is_no_review(
    over: str, names: list[str], tmp_path: Path
) -> None:
    combine = "def combine(losses):\n    total = torch.tensor(0.0)\n    for loss in OVER:\n"
    combine += "        total = total + 0.5 * loss\n    return total\n\n\n"
    lines = "losses = [F.mse_loss(out, y), F.l1_loss(out, y)]\nloss = combine(losses)\n"
    assert _carried(_loop(combine.replace("OVER", over), lines), tmp_path) == names
