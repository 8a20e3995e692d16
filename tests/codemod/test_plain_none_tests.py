"""Tests for None: all ranks have an object or none has, although its value is another one on each rank."""

from __future__ import annotations

from pathlib import Path

import pytest
from plain_loops import LOOP, body, convert

DATA = "data = TensorDataset(torch.ones(8, 4), torch.ones(8, 1))\n"
END = "if best is not None:\n    model.load_state_dict(best)\n    optimizer.step()\n"
EPOCHS = "best, lowest = None, 1e9\n" + LOOP.replace(
    "for x, y in loader:", "for epoch in range(2):\n  for x, y in loader:"
).replace("    optimizer.zero", "      optimizer.zero").replace("    loss", "      loss").replace(
    "    optimizer.step", "      optimizer.step"
)
AGREED = (
    "  if loss < lowest:\n    lowest = loss.item()\n    best = {k: v * loss for k, v in model.state_dict().items()}\n"
)


def _text(line: str) -> str:
    return body(DATA + EPOCHS + line + END)


def test_ranks_that_agreed_to_keep_weights_have_some(tmp_path: Path) -> None:
    after = convert(tmp_path, _text(AGREED))
    assert "if rank_0_decides(loss < lowest):" in after
    assert "\nif best is not None:" in after


@pytest.mark.parametrize(
    "line",
    [
        "  best = None if loss > 1 else loss\n",
        "  best = {'a': loss}.get(str(loss.item()))\n",
        "  try:\n    best = model(x) * loss\n  except ValueError:\n    pass\n",
    ],
)
def test_what_one_rank_alone_may_have_is_rank_0s(tmp_path: Path, line: str) -> None:
    assert "rank_0_decides(best is not None)" in convert(tmp_path, _text(line))


def test_an_argument_that_all_calls_give_needs_no_decision(tmp_path: Path) -> None:
    function = "def update(mask=None):\n    if mask is not None:\n        model.fc.bias.data.zero_()\n\n\n"
    text = function + DATA + LOOP.replace("    loss.backward", "    update(y * 2)\n    loss.backward")
    assert "if mask is not None:" in convert(tmp_path, body(text))


def test_a_part_of_a_module_keeps_nothing_of_what_it_is_given(tmp_path: Path) -> None:
    """Its method was taken for one that keeps the batch, so that each attribute of the part differed by rank."""
    module = """\
from timm import create_model


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = create_model("vit")
        self.head = nn.Linear(4, 1)

    def features(self, x):
        return self.backbone.forward_features(x)

    def forward(self, x):
        return self.head(self.features(x))


"""
    loop = LOOP.replace("Net()", "Model()").replace(
        "    loss.b", "    if model.backbone.frozen:\n        break\n    loss.b"
    )
    assert "if model.backbone.frozen:" in convert(tmp_path, body(module + DATA + loop))
