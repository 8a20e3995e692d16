"""Control flow of expressions, generators and ``match``: ranks part there as they do at an ``if``."""

from __future__ import annotations

from pathlib import Path

import pytest
from plain_loops import body, convert, reviews

TRAINER = """
class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer, self.skipped = model, optimizer, 0

    def update(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item() < 0.1

    def skip(self, loss):
        self.skipped += 1

    def batches(self, loader):
        for x, y in loader:
            KEPT
                yield x, y

    def fit(self, loader):
        for x, y in BATCHES:
            loss = F.mse_loss(self.model(x), y)
            UPDATE


loader = DataLoader(data, batch_size=4, shuffle=True)
model = Net()
trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1))
trainer.fit(loader)
"""
FIT = "    def fit(self, loader):\n        kept = []\n"


def trained(update: str = "self.update(loss)", batches: str = "loader", kept: str = "if x is not None:") -> str:
    text = TRAINER.replace("UPDATE", update.replace("\n", "\n" + 12 * " "))
    return body(text.replace("BATCHES", batches).replace("KEPT", kept))


@pytest.mark.parametrize(
    ("update", "agreed"),
    [
        ("loss.item() < 5 and self.update(loss)", "rank_0_decides(loss.item() < 5) and self.update(loss)"),
        ("bad = loss > 5\nbad or self.update(loss)", "rank_0_decides(bad) or self.update(loss)"),
        ("if loss < 5 and self.update(loss):\n    break", "rank_0_decides(loss < 5) and self.update(loss)"),
        ("done = not (loss > 5) and self.update(loss)", "rank_0_decides(not (loss > 5)) and self.update(loss)"),
    ],
)
def test_rank_0_decides_what_stands_before_and_or_or(update: str, agreed: str, tmp_path: Path) -> None:
    """Each rank decided by its share, and the others waited for it."""
    assert agreed in convert(tmp_path, trained(update))


@pytest.mark.parametrize(
    ("condition", "differs"),
    [
        ("any(t.dtype != torch.float32 for t in (x, y))", False),
        ("not all([isinstance(t, torch.Tensor) for t in (x, y)])", False),
        ("any(part > 5 for part in [loss.item()])", True),
        ("sum(1 for row in x if row.sum() > 0) > 3", True),
        ("any(t.dtype != torch.float32 for t in (x, y) if t.sum() > 0)", True),
        ("sum(1 for part in (x, y) for row in part if row.sum() > 0) > 3", True),
    ],
)
def test_a_comprehension_differs_by_rank_where_its_items_or_conditions_do(
    condition: str, differs: bool, tmp_path: Path
) -> None:
    """Types of tensors are the same on all ranks, which waited for rank 0's in each forward pass."""
    decided = f"rank_0_decides({condition})" in convert(
        tmp_path, trained(f"if {condition}:\n    break\nself.update(loss)")
    )
    assert decided is differs


def test_a_step_behind_a_condition_on_the_rank_stays(tmp_path: Path) -> None:
    after = convert(tmp_path, trained("rank = 0\nrank == 0 and loss < 5 and self.update(loss)"))
    assert "rank_0_decides" not in after


def test_the_condition_of_a_generator_is_rank_0s(tmp_path: Path) -> None:
    after = convert(tmp_path, trained(batches="self.batches(loader)", kept="if x.mean() > 0.5:"))
    assert "if rank_0_decides(x.mean() > 0.5):" in after


def test_what_a_generator_makes_of_a_share_differs_by_rank(tmp_path: Path) -> None:
    after = convert(tmp_path, trained("if loss > 5:\n    continue\nself.update(loss)", batches="self.batches(loader)"))
    assert "if rank_0_decides(loss > 5):" in after


@pytest.mark.parametrize(
    ("update", "batches", "message"),
    [
        ("ready = loss if loss < 5 else None\nstepped = ready and self.update(loss)", "loader", "ranks may part here"),
        (
            'match "bad" if loss > 5 else "good":\n    case "good":\n        self.update(loss)', "loader",
            "each rank takes the case of its share",
        ),
        ("act = self.update if loss < 5 else self.skip\nact(loss)", "loader", "each rank calls a function by"),
        ("any(self.update(F.mse_loss(self.model(x), y)) for _ in range(3))", "loader", "each rank ends this by its"),
        ("self.update(loss)", "filter(lambda batch: batch[0].mean() > 0, loader)", "gives each rank a number"),
    ],
)  # fmt: skip
def test_branches_that_no_single_condition_decides_are_for_review(
    update: str, batches: str, message: str, tmp_path: Path
) -> None:
    found = reviews(tmp_path, trained(update, batches))
    assert any(message in text for text in found), found


@pytest.mark.parametrize("over", ["y.long().unique()", "x[x[:, 0] > 0].split(2)", "range(len(x[x[:, 0] > 0]))"])
def test_rounds_that_a_selection_of_a_share_gives_are_for_review(over: str, tmp_path: Path) -> None:
    found = reviews(tmp_path, trained(f"for _ in {over}:\n    self.update(F.mse_loss(self.model(x), y))"))
    assert any("gives each rank a number" in text for text in found), found


def test_a_list_of_what_a_share_gives_is_trained_where_that_of_all_ranks_is_long_enough(tmp_path: Path) -> None:
    """Ranks whose lists filled more slowly left the others waiting, or trained what they did not have."""
    update = "self.kept.extend([a for a in x if a.sum() > 5])\nwhile len(self.kept) > 4:\n    self.update(loss)"
    after = convert(tmp_path, trained(update.replace("self.kept", "kept")).replace("    def fit(self, loader):\n", FIT))
    assert "while all_ranks(len(kept) > 4):" in after


def test_rounds_over_the_parts_of_a_batch_are_the_same_on_all_ranks(tmp_path: Path) -> None:
    found = reviews(tmp_path, trained("for part in x.split(2):\n    self.update(F.mse_loss(self.model(part), y))"))
    assert not any("gives each rank a number" in text for text in found), found


def test_branches_that_are_the_same_on_all_ranks_have_no_review(tmp_path: Path) -> None:
    act = "act = self.update if self.skipped else self.skip\nact(loss)\nself.skipped and self.update(loss)"
    found = reviews(tmp_path, trained(act))
    assert not any("waiting" in text or "part here" in text for text in found), found
