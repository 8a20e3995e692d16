"""Plain loops on several ranks: batches of which one rank's share has nothing to train."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from plain_loops import HEADER, LOOP, body, convert, run

MESSAGE = "all ranks leave a batch out where the condition of one leaves it out"


def with_lines(lines: str) -> str:
    assert LOOP.count("    loss.backward()") == 1
    return HEADER + LOOP.replace(
        "    loss.backward()", "    " + lines.replace("\n", "\n    ") + "\n    loss.backward()"
    )


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("n = int(y.sum())\nif n == 0:\n    continue\nloss = loss / n", "    if any_rank(n == 0):\n"),
        ("keep = y > 0\nif not keep.any():\n    continue", "    if any_rank(not keep.any()):\n"),
        ("found = y.nonzero()\nif len(found) < 4:\n    continue", "    if any_rank(len(found) < 4):\n"),
        ("keep = y > 0\nif keep.sum() > 0:\n    loss[keep].mean().backward()", "    if all_ranks(keep.sum() > 0):\n"),
        ("loss = pick(loss)\nif loss is None:\n    continue", "    if any_rank(loss is None):\n"),
        ("bad = torch.isnan(loss).any()\nif bad:\n    continue", "    if any_rank(bad):\n"),
        ("if 'labels' not in y:\n    continue", "    if any_rank('labels' not in y):\n"),
        ("if y.max().item() > 9:\n    continue", "    if any_rank(y.max().item() > 9):\n"),
        ("if loss.item() == 0:\n    continue", "    if mean_over_ranks(loss.item()) == 0:\n"),
        ("if loss.item() > 9:\n    continue", "    if mean_over_ranks(loss.item()) > 9:\n"),
        ("if y.max(0)[0] > 9:\n    continue", "    if any_rank(y.max(0)[0] > 9):\n"),
        ("if not is_good(y):\n    continue", "    if any_rank(not is_good(y)):\n"),
        ("if y.sum() == 0:\n    break", "    if rank_0_decides(y.sum() == 0):\n"),
    ],
)
def test_no_rank_trains_a_batch_that_its_own_condition_leaves_out(lines: str, expected: str, tmp_path: Path) -> None:
    """Rank 0's decision alone had another rank divide by its own zero, and train by NaN."""
    good = "def is_good(y):\n    return y.std() < 9\n\n\n"
    pick = "def pick(loss):\n    return loss if loss.sum() > 0 else None\n\n\n"
    text = with_lines(lines).replace(HEADER, HEADER + good + pick)
    report = run(tmp_path, train=text)
    assert expected in (report.files[0].after or b"").decode()
    found = [f.message for _, f in report.findings(Severity.REVIEW) if f.message.startswith(MESSAGE)]
    assert len(found) == ("any_rank" in expected or "all_ranks" in expected)


def test_a_batch_that_rank_0_alone_leaves_out_by_a_number_is_for_review(tmp_path: Path) -> None:
    """Other ranks trained what their own condition leaves out, without a word."""
    report = run(tmp_path, train=with_lines("if y.float().std() > 9:\n    continue"))
    assert "    if rank_0_decides(y.float().std() > 9):\n" in (report.files[0].after or b"").decode()
    messages = [f.message for _, f in report.findings(Severity.REVIEW)]
    assert any(m.startswith("rank 0 decides by its share whether a batch is trained") for m in messages)


def test_a_function_that_returns_before_its_step_asks_all_ranks(tmp_path: Path) -> None:
    text = """\
    def update(model, optimizer, x, y):
        count = (y > 0).sum().item()
        if count == 0:
            return None
        loss = (model(x) - y).abs().sum() * (1 / count)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()


    MAKE_MODEL
    for x, y in DataLoader(data, batch_size=4, shuffle=True):
        update(model, optimizer, x, y)
    """
    assert "    if any_rank(count == 0):\n        return None\n" in convert(tmp_path, body(text))


def test_an_end_of_training_after_an_epoch_stays_rank_0s(tmp_path: Path) -> None:
    text = """\
    MAKE_MODEL
    loader = DataLoader(data, batch_size=4, shuffle=True)
    for epoch in range(9):
        hits = 0
        for x, y in loader:
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            hits += (y > 0).sum().item()
        if hits == 0:
            continue
        for group in optimizer.param_groups:
            group["lr"] *= 0.5
    """
    assert "    if rank_0_decides(hits == 0):\n" in convert(tmp_path, body(text))


@pytest.mark.parametrize(
    ("lines", "is_asked"),
    [
        ("found = (y > 0).nonzero().squeeze(1)\nif found.numel() == 0:\n    continue", True),
        ("kept = x[y > 0]\nif kept.shape[0] == 0:\n    continue", True),
        ("kept = x[y > 0]\nn = kept.size(0)\nif n < 2:\n    continue", True),
        ("if len(torch.unique(y)) < 2:\n    continue", True),
        ("found = [each for each in y if each > 0]\nif len(found) == 0:\n    continue", True),
        ("rows = []\nfor each in y:\n    if each > 0:\n        rows.append(1)\nif len(rows) == 0:\n    continue", True),
        ("if len(x) < 2:\n    continue", False),
        ("if x.size(0) == 1:\n    continue", False),
        ("rows = [each for each in y]\nif len(rows) < 2:\n    continue", False),
        ("order = torch.randperm(len(x))[:2]\nif len(x[order]) < 2:\n    continue", False),
    ],
)
def test_how_many_samples_a_mask_selects_differs_by_rank(lines: str, is_asked: bool, tmp_path: Path) -> None:
    """The size of a selection was taken for that of a batch, and ranks that trained it waited for one that did not."""
    assert ("any_rank(" in convert(tmp_path, with_lines(lines))) is is_asked


def test_a_sum_of_selected_samples_is_trained_where_all_ranks_have_enough(tmp_path: Path) -> None:
    """Rank 0 alone counted its own, and another rank trained an empty list."""
    lines = "queue += [each for each in x if each.sum() > 0]\nif len(queue) >= 4:\n    queue[0].sum().backward()"
    text = with_lines(lines).replace(HEADER, HEADER + "queue = []\n")
    assert "    if all_ranks(len(queue) >= 4):\n" in convert(tmp_path, text)
