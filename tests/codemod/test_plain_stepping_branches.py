"""Plain loops whose branches each make an optimizer, and step it there."""

from __future__ import annotations

from pathlib import Path

import pytest
from plain_loops import HEADER, blocked, body, convert

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


def test_an_attribute_that_the_constructor_alone_sets_has_one_value_in_a_method(tmp_path: Path) -> None:
    text = body("""
        class Trainer:
            def __init__(self, model, amp):
                self.model = model
                self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
                self.scaler = None
                if amp:
                    self.scaler = torch.amp.GradScaler("cuda")

            def update(self, x, y, i):
                loss = F.mse_loss(self.model(x), y) / 2
                if self.scaler is not None:
                    self.scaler.scale(loss).backward()
                else:
                    loss.backward()
                if (i + 1) % 2 == 0:
                    if self.scaler is not None:
                        self.scaler.step(self.optimizer)
                        self.scaler.update()
                    else:
                        self.optimizer.step()
                    self.optimizer.zero_grad()


        trainer = Trainer(Net(), len(data) > 8)
        for i, (x, y) in enumerate(DataLoader(data, batch_size=4)):
            trainer.update(x, y, i)
        """)
    after = convert(tmp_path, text)
    assert "use_scaler(self.engine, self.scaler)\n" in after and "use_scaler(self.engine, None)\n" in after
    begun_again = text.replace("    def update", "    def stop(self):\n        self.scaler = None\n\n    def update", 1)
    assert [code for code, _ in blocked(tmp_path, begun_again)] == ["DSM607"]
