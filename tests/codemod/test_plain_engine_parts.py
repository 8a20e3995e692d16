"""Several optimizers of plain training loops that hold parts of one module."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.rules.codes import Code
from plain_loops import blocked, body, convert

PARTS = """
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(4, 4)
            self.head = nn.Linear(4, 1)

        def forward(self, x):
            return self.head(self.body(x))


    model = Two()
    first = torch.optim.SGD(model.body.parameters(), lr=0.1)
    second = torch.optim.Adam(model.head.parameters(), lr=0.1)
    for x, y in DataLoader(data, batch_size=4):
        first.zero_grad()
        second.zero_grad()
        F.mse_loss(model(x), y).backward()
        first.step()
        second.step()
    """


def test_optimizers_of_parts_of_a_module_get_engines_of_these_parts(tmp_path: Path) -> None:
    after = convert(tmp_path, body(PARTS))
    assert "body_engine, *_ = deepspeed.initialize(\n    model=model.body,\n    optimizer=first," in after
    assert "head_engine, *_ = deepspeed.initialize(\n    model=model.head,\n    optimizer=second," in after
    assert "    body_engine.backward(F.mse_loss(model(x), y), scale_wrt_gas=False)\n    body_engine.step()" in after


@pytest.mark.parametrize("other", ["model", "model.body", "model.body.weight"])
def test_optimizers_that_share_a_part_are_refused(other: str, tmp_path: Path) -> None:
    new = "[model.body.weight]" if other.endswith("weight") else f"{other}.parameters()"
    found = blocked(tmp_path, body(PARTS).replace("model.head.parameters()", new))
    assert Code.PLAIN_ENGINE in [code for code, _ in found]


@pytest.mark.parametrize("tie", ["self.head.weight = self.body.weight", "self.also = Net(self.body)"])
def test_parts_that_may_share_parameters_are_refused(tie: str, tmp_path: Path) -> None:
    ((code, _),) = blocked(
        tmp_path, body(PARTS).replace("self.head = nn.Linear(4, 1)", f"self.head = Net()\n        {tie}")
    )
    assert code == Code.PLAIN_ENGINE
