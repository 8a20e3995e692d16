"""Rows that a loop chooses by its position in a loader, of which each rank goes through a share."""

from __future__ import annotations

from pathlib import Path

import pytest
from plain_loops import body, reviews

LOOP = """
loader = DataLoader(data, batch_size=4)
rows = torch.zeros(len(data), 4)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(2):
    start = step = 0
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        x.requires_grad_(True)
        CHOOSE
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        FILL
"""


def rows_by_position(tmp_path: Path, choose: str = "", fill: str = "") -> list[str]:
    indent = "\n" + 8 * " "
    text = LOOP.replace("CHOOSE", choose.replace("\n", indent)).replace("FILL", fill.replace("\n", indent))
    return [message for message in reviews(tmp_path, body(text)) if "by the position in the loader" in message]


@pytest.mark.parametrize(
    ("choose", "fill"),
    [
        ("", "rows[i * 4:(i + 1) * 4] = x.grad"),
        ("", "idx = i * 4 + torch.arange(len(x))\nrows[idx] = x.grad"),
        ("", "end = start + x.size(0)\nrows[start:end] = x.detach()\nstart = end"),
        ("", "rows[start:start + len(x), :] = x.detach()\nstart += len(x)"),
        ("", "rows[i] = x.grad"),
        ("y = rows[i * 4:(i + 1) * 4]", ""),
    ],
)
def test_rows_by_the_position_in_a_share_are_for_review(choose: str, fill: str, tmp_path: Path) -> None:
    """Each rank used and filled the first rows, which are those of rank 0's samples at most."""
    (message,) = rows_by_position(tmp_path, choose, fill)
    assert message.startswith("rows of rows are chosen")


def test_an_embedding_of_each_sample_is_for_review(tmp_path: Path) -> None:
    choose = "y = nn.Embedding(8, 4)(torch.arange(i * 4, i * 4 + len(x)))"
    assert len(rows_by_position(tmp_path, choose)) == 1


@pytest.mark.parametrize(
    "line",
    [
        "rows[i] = loss.item()",
        "print(i * len(x), len(data))",
        "step += 1\nrows[step % 4] = loss.item()",
        "rows[epoch * len(loader) + i] = loss.item()",
    ],
)
def test_numbers_of_batches_choose_no_samples(line: str, tmp_path: Path) -> None:
    assert not rows_by_position(tmp_path, fill=line)
