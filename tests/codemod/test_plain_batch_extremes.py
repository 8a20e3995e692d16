"""Losses that are the largest number of a batch, and numbers that a batch gives for the loss of the next one."""

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
radius = 0.0
lengths = torch.arange(8)
"""
STEP = "optimizer.zero_grad()\nloss.backward()\noptimizer.step()\n"
LOSSES = 'losses = F.mse_loss(model(x), y, reduction="none")\n'
DISTANCES = "distances = ((model(x) - y) ** 2).sum(1)\nloss = (distances - radius**2).clamp(min=0).mean()\n"
OF_BATCH = (
    "this is made of a whole batch, and is no mean over its samples: "
    "what ranks find for their shares is, on average, another loss"
)
CARRIED = "each rank makes its own radius of the batches of its share, one after the other, for the loss"


def _reviews(lines: str, tmp_path: Path, behind: str = "") -> list[str]:
    loop = textwrap.indent(f"{lines}{STEP}{behind}", "    ")
    report = run(tmp_path, train=f"{HEADER}{SETUP}for x, y in loader:\n{loop}")
    return [finding.message for _, finding in report.findings(Severity.REVIEW)]


@pytest.mark.parametrize(
    ("lines", "is_reviewed"),
    [
        (f"{LOSSES}loss = losses.max()\n", True),
        (f"{LOSSES}loss = losses.mean() + 0.1 * torch.min(losses)\n", True),
        ("loss = (model(x) - y).abs().max()\n", True),
        (f"{LOSSES}losses = torch.max(losses, torch.zeros_like(losses))\nloss = losses.mean()\n", False),
        (f"{LOSSES}loss = losses.max(1)[0].mean()\n", False),
        (f"longest = int(y.max())\nx = x[:, : longest + 4]\n{LOSSES}loss = losses.mean()\n", False),
    ],
)
def test_a_loss_that_is_the_largest_of_a_batch_is_for_review(lines: str, is_reviewed: bool, tmp_path: Path) -> None:
    """The mean over ranks of the largest losses of their shares is not the largest of all."""
    assert _reviews(lines, tmp_path) == [OF_BATCH] * is_reviewed


def test_a_quotient_by_a_number_of_a_batch_that_is_made_an_int_is_for_review(tmp_path: Path) -> None:
    lines = f"count = max(1, int((y > 0).sum()))\n{LOSSES}loss = losses.sum() / count\n"
    assert OF_BATCH in _reviews(lines, tmp_path)


def test_a_mean_over_what_a_part_of_the_model_gives_for_selected_samples_is_for_review(tmp_path: Path) -> None:
    """Shares of ranks have other numbers of selected samples, so that the mean over ranks is not that of all."""
    text = """
class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 1)


model = Heads()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(data, batch_size=4):
    features = model.body(x)
    loss = model.head(features[y[:, 0] > 0]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
    report = run(tmp_path, train=HEADER + text)
    assert [finding.message for _, finding in report.findings(Severity.REVIEW)] == [OF_BATCH]


@pytest.mark.parametrize(
    "behind",
    [
        "radius = np.quantile(distances.detach().sqrt().numpy(), 0.9)\n",
        "radius = torch.tensor(distances.detach().median().item())\n",
        "if len(x) > 1:\n    radius = distances.mean().item()\n",
    ],
)
def test_what_a_batch_gives_for_the_next_loss_is_for_review(behind: str, tmp_path: Path) -> None:
    assert CARRIED in _reviews(DISTANCES, tmp_path, behind)


def test_what_a_batch_gives_for_the_next_loss_in_an_attribute_is_for_review(tmp_path: Path) -> None:
    trainer = """\
    class Trainer:
        def __init__(self, model):
            self.model = model
            self.radius = torch.tensor(0.0)
            self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def fit(self, loader):
            for x, y in loader:
                distances = ((self.model(x) - y) ** 2).sum(1)
                loss = (distances - self.radius**2).mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.radius.data = torch.tensor(distances.detach().median().item())


    Trainer(Net()).fit(DataLoader(data, batch_size=4))
    """
    report = run(tmp_path, train=HEADER + textwrap.dedent(trainer))
    assert CARRIED.replace("radius", "self.radius") in [f.message for _, f in report.findings(Severity.REVIEW)]


@pytest.mark.parametrize("behind", ["print(radius)\n", "shown = distances.mean().item()\nprint(shown)\n"])
def test_what_no_loss_uses_needs_no_review(behind: str, tmp_path: Path) -> None:
    assert not _reviews(DISTANCES, tmp_path, behind)


@pytest.mark.parametrize(
    ("made", "is_reviewed"),
    [("mean = first.mean(0)", True), ("center = first.mean(0)\nmean = 2 * center", True), ("mean = 0.5", False)],
)
def test_what_the_first_batch_gives_for_every_loss_is_for_review(made: str, is_reviewed: bool, tmp_path: Path) -> None:
    """Each rank drew the first batch of its share, and trained by its own mean."""
    begin = SETUP + "first, _ = next(iter(loader))\n" + made
    loop = textwrap.indent(f"x = x - mean\nloss = F.mse_loss(model(x), y)\n{STEP}", "    ")
    report = run(tmp_path, train=f"{HEADER}{begin}\nfor x, y in loader:\n{loop}")
    message = "each rank makes its own mean of the first batch of its share for the loss"
    assert [f.message for _, f in report.findings(Severity.REVIEW)] == [message] * is_reviewed


ENDLESS = """
class Endless:
    def __init__(self, loader):
        self.batches = self.go_round(loader)

    @staticmethod
    def go_round(loader):
        while True:
            yield from loader

    def __next__(self):
        batch = next(self.batches)
        return batch


"""


def test_a_quotient_of_sums_over_what_an_object_draws_is_for_review(tmp_path: Path) -> None:
    """RotatE weighs the triples of a batch, which two loaders give in turn behind ``next()`` of an object."""
    loss = "loss = -(y * model(x)).sum() / y.sum()\n"
    loop = textwrap.indent(f"x, y = next(batches)\n{loss}{STEP}", "    ")
    train = f"{HEADER}{ENDLESS}{SETUP}batches = Endless(loader)\nfor step in range(9):\n{loop}"
    report = run(tmp_path, train=train)
    assert [finding.message for _, finding in report.findings(Severity.REVIEW)] == [OF_BATCH]
