"""Plain loops whose branches each make an optimizer, and step it there."""

from __future__ import annotations

from pathlib import Path

import pytest
from plain_loops import HEADER, convert

START = "x, y = torch.randn(8, 4), torch.randn(8, 1)\nmodel = Net()\n"
MADE = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
STEP = "loss = F.mse_loss(model(x), y)\noptimizer.zero_grad()\nloss.backward()\noptimizer.step()\n"


def _indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


@pytest.mark.parametrize(
    "text",
    [
        f"if len(x) > 4:\n{_indented(MADE + STEP)}else:\n{_indented(MADE + STEP)}",
        f"if len(x) > 4:\n{_indented(MADE + STEP)}if len(x) > 2:\n{_indented(MADE + STEP)}",
        f"if len(x) > 4:\n{_indented(MADE + STEP)}elif len(y):\n    for _ in x:\n{_indented(_indented(MADE + STEP))}",
    ],
)
def test_each_branch_that_steps_its_optimizer_makes_its_engine(text: str, tmp_path: Path) -> None:
    lines = [line.strip() for line in convert(tmp_path, HEADER + START + text).splitlines()]
    order = [line for line in lines if line.startswith(("engine, *_", "engine.step"))]
    assert order == ["engine, *_ = deepspeed.initialize(", "engine.step()"] * 2


def test_branches_that_only_make_the_optimizer_share_an_engine(tmp_path: Path) -> None:
    text = f"if len(x) > 4:\n{_indented(MADE)}else:\n{_indented(MADE)}{STEP}"
    assert convert(tmp_path, HEADER + START + text).count("deepspeed.initialize(") == 1


def test_each_branch_that_has_a_function_step_its_optimizer_makes_its_engine(tmp_path: Path) -> None:
    step = "def fit(optimizer):\n" + _indented(STEP)
    used = _indented(MADE + "fit(optimizer)\n")
    after = convert(tmp_path, HEADER + START + step + f"if len(x) > 4:\n{used}elif len(y):\n{used}")
    lines = [line.strip() for line in after.splitlines()]
    order = [line for line in lines if line.startswith(("engine, *_", "fit("))]
    assert order == ["engine, *_ = deepspeed.initialize(", "fit(engine)"] * 2
