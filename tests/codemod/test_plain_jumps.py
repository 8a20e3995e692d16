"""Values that follow a jump: what a loop counts behind ``continue``, and losses that are divided by such counts."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from plain_loops import HEADER, convert, run

SETUP = """\
loader = DataLoader(data, batch_size=4, shuffle=True)
MAKE_MODEL
"""
STEP = "optimizer.zero_grad()\nloss.backward()\noptimizer.step()\n"
COUNTED = """\
loss, n = 0.0, 0
for xi, yi in zip(x, y):
    COUNT
if n == 0:
    continue
"""
ADD = "loss = loss + F.mse_loss(model(xi), yi)"
OF_BATCH = (
    "this is made of a whole batch, and is no mean over its samples: "
    "what ranks find for their shares is, on average, another loss"
)


def _loop(lines: str) -> str:
    return f"{HEADER}{SETUP}for x, y in loader:\n{textwrap.indent(lines + STEP, '    ')}"


@pytest.mark.parametrize(
    "count",
    [
        f"if yi < 0:\n        continue\n    {ADD}\n    n += 1",
        f"if yi < 0:\n        break\n    {ADD}\n    n += 1",
        f"n += 1\n    {ADD}\n    if yi < 0:\n        break",
        f"if yi < 0:\n        pass\n    elif yi < 1:\n        continue\n    {ADD}\n    n += 1",
    ],
)
def test_ranks_decide_by_what_a_loop_counts_behind_a_jump(count: str, tmp_path: Path) -> None:
    """A rank whose batch has nothing to count left the step out, and the others waited for it."""
    assert "if any_rank(n == 0):\n" in convert(tmp_path, _loop(COUNTED.replace("COUNT", count)))


@pytest.mark.parametrize(
    "count",
    [
        "if x is None:\n        continue\n    n += 1",
        "if len(x) < 2:\n        break\n    n += 1",
        "n += 1\n    for part in yi:\n        if part < 0:\n            break",
    ],
)
def test_jumps_that_all_ranks_make_or_of_other_loops_decide_nothing(count: str, tmp_path: Path) -> None:
    text = COUNTED.replace("COUNT", count) + "loss = F.mse_loss(model(x), y)\n"
    assert "rank_0_decides" not in (after := convert(tmp_path, _loop(text))) and "any_rank" not in after


@pytest.mark.parametrize(
    ("count", "divided"),
    [
        (f"if yi < 0:\n        continue\n    {ADD}\n    n += 1", "loss / n"),
        (f"if yi > 0:\n        {ADD}\n        n += 1", "loss / max(n, 1)"),
        (f"if yi > 0:\n        {ADD}\n        n += weights.get(int(yi), 1.0)", "loss / n"),
        (f"weight = weights[int(yi)]\n    if yi > 0:\n        {ADD}\n        n += weight", "loss / n"),
    ],
)
def test_a_loss_divided_by_what_a_loop_counts_is_for_review(count: str, divided: str, tmp_path: Path) -> None:
    text = f"weights = {{0: 1.0}}\n{COUNTED.replace('COUNT', count)}loss = {divided}\n"
    report = run(tmp_path, train=_loop(text))
    found = [f.message for _, f in report.findings(Severity.REVIEW)]
    assert [message for message in found if not message.startswith("all ranks leave a batch out")] == [OF_BATCH]


def test_a_loss_divided_by_the_number_of_samples_is_a_mean(tmp_path: Path) -> None:
    text = f"{COUNTED.replace('COUNT', f'{ADD}{chr(10)}    n += 1')}loss = loss / n\n"
    assert not list(run(tmp_path, train=_loop(text)).findings(Severity.REVIEW))
