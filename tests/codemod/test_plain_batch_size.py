"""The batch size in an engine's config, where branches may not have run."""

from __future__ import annotations

from pathlib import Path

import pytest
from plain_loops import HEADER, convert

FIT = """
def fit(train, val=None):
    model = Net()
    if val is None:
        size = train.batch_size or 4
        loader = DataLoader(train.dataset, batch_size=size, shuffle=True)
    else:
        loader = train
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        STEP

fit(DataLoader(data, batch_size=4))
"""


def test_a_batch_size_of_a_branch_that_may_not_run_is_not_read_behind_it(tmp_path: Path) -> None:
    after = convert(tmp_path, HEADER + FIT)
    assert "size," not in after.split("micro_batch_size_per_gpu")[1].splitlines()[0]


CHOSEN = """
def train(args):
    CHOICE
    MAKE_MODEL
    if args:
        for x, y in loader:
            STEP

train(True)
"""
LOADER = "loader = DataLoader(data, batch_size=abs(4))"


@pytest.mark.parametrize(
    ("choice", "size"),
    [
        (f"if args:\n        {LOADER}", "1"),
        (f"if args:\n        {LOADER}\n    else:\n        raise ValueError", "loader.batch_size"),
        (LOADER, "loader.batch_size"),
    ],
    ids=["may not be", "or an error", "always"],
)
def test_the_batch_size_of_a_loader_is_read_where_there_is_one(choice: str, size: str, tmp_path: Path) -> None:
    after = convert(tmp_path, HEADER + CHOSEN.replace("CHOICE", choice))
    assert f'"train_micro_batch_size_per_gpu": {size},' in after
