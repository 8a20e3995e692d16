"""Plain loops on several ranks: conditions and loops by the sizes of what a batch holds, which differ by rank."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from plain_loops import HEADER, convert, run

HELPERS = """\
def collate(items):
    return torch.stack([a for a, _ in items]), [b for _, b in items]


def has_targets(batch):
    return any(len(target['labels']) > 0 for target in batch)


def has_boxes(batch):
    for target in batch:
        if target['boxes'].shape[0] > 0:
            return True
    return False


def count(batch):
    found = 0
    for target in batch:
        found += len(target['boxes'])
    return found


"""
LOOP = """\
loader = DataLoader(data, batch_size=4, shuffle=True, collate_fn=collate)
MAKE_MODEL
for x, y in loader:
    HEAD
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
"""
ROUNDS = "the share of the data gives each rank a number of rounds here: some may leave others waiting"


@pytest.mark.parametrize(
    "condition",
    [
        "len(y) == 0",
        "not len(y)",
        "y.shape[0] == 0",
        "y.to('cpu').size(0) < 1",
        "y.numel() == 0",
        "len(y[0]['boxes']) == 0",
        "all(len(target['boxes']) == 0 for target in y)",
        "sum(len(target) for target in y) == 0",
        "not has_targets(y)",
        "not has_boxes(y)",
        "count(y) == 0",
        "x.shape[1] > 512",
    ],
)
def test_no_rank_trains_a_batch_in_which_another_has_nothing(condition: str, tmp_path: Path) -> None:
    """A rank whose images have no boxes left its step out alone, and the others waited for it in theirs."""
    after = convert(tmp_path, HELPERS + HEADER + LOOP.replace("HEAD", f"if {condition}:\n        continue"))
    assert f"    if any_rank({condition}):\n        continue\n" in after


def test_a_number_of_boxes_that_a_name_holds_is_asked_of_all_ranks(tmp_path: Path) -> None:
    head = "n = sum([len(target) for target in y])\n    if n == 0:\n        continue"
    assert "    if any_rank(n == 0):\n" in convert(tmp_path, HELPERS + HEADER + LOOP.replace("HEAD", head))


def test_a_length_that_a_name_holds_is_asked_of_all_ranks(tmp_path: Path) -> None:
    head = "number, length = x.shape\n    if length > 512:\n        continue"
    assert "    if any_rank(length > 512):\n" in convert(tmp_path, HELPERS + HEADER + LOOP.replace("HEAD", head))


COLLECTED = {"pos = 0": "pos += 1", "found = False": "found = True", "kept = []": "kept.append(target)"}


@pytest.mark.parametrize(
    ("begin", "condition"),
    [
        ("pos = 0", "pos == 0"),
        ("found = False", "not found"),
        ("kept = []", "not kept"),
        ("kept = []", "len(kept) == 0"),
    ],
)
@pytest.mark.parametrize("leaves", [False, True])
def test_what_is_counted_of_boxes_is_asked_of_all_ranks(
    begin: str, condition: str, leaves: bool, tmp_path: Path
) -> None:
    if leaves:
        test = f"if len(target['boxes']) == 0:\n            continue\n        {COLLECTED[begin]}"
    else:
        test = f"if len(target['boxes']) > 0:\n            {COLLECTED[begin]}"
    head = f"{begin}\n    for target in y:\n        {test}\n    if {condition}:\n        continue"
    assert f"    if any_rank({condition}):\n" in convert(tmp_path, HELPERS + HEADER + LOOP.replace("HEAD", head))


@pytest.mark.parametrize(
    "condition",
    ["isinstance(loss, int)", "type(loss) is int", "not torch.is_tensor(loss)", "not hasattr(loss, 'backward')"],
)
def test_a_loss_to_which_nothing_was_added_is_asked_of_all_ranks(condition: str, tmp_path: Path) -> None:
    """Where no image of a share has boxes, the loss is still the 0 that it began with."""
    loss = (
        "loss = 0\n    for target in y:\n        if len(target['boxes']) > 0:\n"
        "            loss = loss + F.mse_loss(model(x), target['boxes'])\n"
        f"    if {condition}:\n        continue"
    )
    text = LOOP.replace("HEAD", loss).replace("    loss = F.mse_loss(model(x), y)\n", "")
    assert f"    if any_rank({condition}):\n" in convert(tmp_path, HELPERS + HEADER + text)


@pytest.mark.parametrize(
    "condition", ["isinstance(x, list)", "len(x) < 2", "x.size(0) == 1", "x.shape[0] != 4", "len(loader) == 0"]
)
def test_a_number_of_samples_is_the_same_on_all_ranks(condition: str, tmp_path: Path) -> None:
    after = convert(tmp_path, HELPERS + HEADER + LOOP.replace("HEAD", f"if {condition}:\n        continue"))
    assert f"    if {condition}:\n" in after


def test_collected_losses_are_as_many_on_all_ranks(tmp_path: Path) -> None:
    loop = LOOP.replace("HEAD", "if len(losses) == 0:\n        model.train()") + "    losses.append(loss.item())\n"
    assert "    if len(losses) == 0:\n" in convert(tmp_path, HELPERS + HEADER + "losses = []\n" + loop)


@pytest.mark.parametrize(
    ("over", "is_long"),
    [
        ("range(0, x.size(1), 20)", True),
        ("x.split(20, 1)", True),
        ("torch.split(x, 20, dim=1)", True),
        ("x.unbind(1)", True),
        ("torch.split(x, 2)", False),
        ("range(len(x))", False),
        ("x", False),
    ],
)
@pytest.mark.parametrize("collate", [", collate_fn=collate", ""])
def test_a_loop_over_the_length_of_samples_is_for_review(
    over: str, is_long: bool, collate: str, tmp_path: Path
) -> None:
    """As parts of a sequence that each make a step: ranks with shorter ones ended before the others."""
    head, end = LOOP.replace(", collate_fn=collate", collate).split("    HEAD\n")
    text = f"{head}    for part in {over}:\n" + "".join(f"    {line}\n" for line in end.splitlines())
    report = run(tmp_path, train=HELPERS + HEADER + text)
    found = [f.message for _, f in report.findings(Severity.REVIEW)]
    assert (ROUNDS in found) is (is_long and bool(collate))


JOINED = """\
class Trainer:
    def __init__(self, model, optimizer, loader):
        self.model, self.optimizer, self.loader = model, optimizer, loader
        self.golden = []

    def collect(self, x):
        keep = self.model(x).squeeze(1) > 0
        self.golden.append({kept}.detach())

    def train(self):
        n = torch.cat(self.golden).shape[0]
        if n < 10:
            return
        for x, y in self.loader:
            OWN_STEP

    def run(self):
        for epoch in range(3):
            for x, y in self.loader:
                self.collect(x)
            self.train()


model = Net()
Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(data, batch_size=4, shuffle=True)).run()
"""


@pytest.mark.parametrize(("kept", "test"), [("x[keep]", "rank_0_decides(n < 10)"), ("x", "n < 10")])
def test_rank_0_decides_by_the_size_of_joined_selections(kept: str, test: str, tmp_path: Path) -> None:
    assert f"if {test}:" in convert(tmp_path, HEADER + JOINED.replace("{kept}", kept))
