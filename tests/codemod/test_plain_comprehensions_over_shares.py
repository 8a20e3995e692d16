"""Comprehensions over the loader that trains: what they collect is of a rank's share of the data."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from plain_loops import HEADER, LOOP, run

SUMMED = "this sums up a rank's share of the data, so that each rank may train by other numbers"
EVALUATED = "this evaluates a rank's share alone: the loader trains too, and shard() divides it"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("labels = torch.cat([y for _, y in loader])", [SUMMED]),
        ("mean = sum(x.mean() for x, y in loader) / len(loader)", [SUMMED]),
        ("correct = sum((model(x) > y).sum().item() for x, y in loader)", [EVALUATED]),
        ("batches = sum(1 for _ in loader)", []),
        ("x, y = next(x for x in loader)", []),
        ("labels = [y for _, y in DataLoader(data, batch_size=8)]", []),
    ],
)
def test_what_a_comprehension_makes_of_a_share_is_for_review(line: str, found: list[str], tmp_path: Path) -> None:
    """An accuracy was n times too small on n ranks, and the weights of classes were those of a share."""
    report = run(tmp_path, train=f"{HEADER}{LOOP}{line}\n")
    assert [finding.message for _, finding in report.findings(Severity.REVIEW)] == found


def test_a_comprehension_that_trains_needs_no_review(tmp_path: Path) -> None:
    step = "def step(x, y):\n    optimizer.zero_grad()\n    loss = F.mse_loss(model(x), y)\n    loss.backward()\n"
    step += "    optimizer.step()\n    return loss.item()\n\n\n"
    setup = LOOP.split("for x, y in loader:")[0]
    report = run(tmp_path, train=f"{HEADER}{setup}{step}losses = [step(x, y) for x, y in loader]\n")
    assert not list(report.findings(Severity.REVIEW))
