"""Functions that keep in a name whether they train: the loader that they evaluate stays whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from plain_loops import HEADER, convert

EPOCH = """\
def run_epoch(model, loader, GIVEN):
    NAMED
    model.train(train)
    total = 0.0
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        if CONDITION:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total += loss.item()
    return total / len(loader)


MAKE_MODEL
train_loader = DataLoader(data, batch_size=4, shuffle=True)
val_loader = DataLoader(data, batch_size=8)
for epoch in range(2):
    run_epoch(model, train_loader, TRAIN)
    print(run_epoch(model, val_loader, EVALUATE))
"""


@pytest.mark.parametrize(
    ("given", "named", "condition", "train", "evaluate"),
    [
        ("optimizer=None", "train = optimizer is not None", "train", "optimizer", "None"),
        ("optimizer=None", "train = not optimizer is None", "train", "optimizer=optimizer", "optimizer=None"),
        ("phase", 'train = phase == "train"', "train", '"train"', '"val"'),
        ("phase", 'train = phase == "train"', "train and loss.requires_grad", '"train"', '"val"'),
        ("split, freeze", 'train = split == "train" and not freeze', "train", '"train", False', '"test", False'),
    ],
)
def test_the_loader_of_evaluation_stays_whole_where_a_name_keeps_the_condition(
    given: str, named: str, condition: str, train: str, evaluate: str, tmp_path: Path
) -> None:
    """It was divided: ranks chose the best epoch by rank 0's share of the validation data."""
    text = EPOCH.replace("GIVEN", given).replace("NAMED", named).replace("CONDITION", condition)
    after = convert(tmp_path, HEADER + text.replace("TRAIN", train).replace("EVALUATE", evaluate))
    assert after.count("shard(") == 1 and "shard(DataLoader(data, batch_size=4, shuffle=True))" in after


@pytest.mark.parametrize(
    "named", ["train = not train_later\n    train_later = not train", "train = loader is not None"]
)
def test_a_condition_of_other_names_decides_nothing(named: str, tmp_path: Path) -> None:
    text = EPOCH.replace("GIVEN", "optimizer").replace("NAMED", named).replace("CONDITION", "train")
    after = convert(tmp_path, HEADER + text.replace("TRAIN", "optimizer").replace("EVALUATE", "optimizer"))
    assert after.count("shard(") == 2
