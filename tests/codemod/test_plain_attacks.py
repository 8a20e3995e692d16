"""Backward passes beside that of a step, in functions that step nothing: attacks on inputs, penalties, helpers."""

from __future__ import annotations

import textwrap
from pathlib import Path

from plain_loops import HEADER, LOOP, body, convert, run

ATTACK = """
    def attack(model, x, y):
        x = x.clone().detach().requires_grad_(True)
        F.mse_loss(model(x), y).backward()
        return (x + 0.1 * x.grad.sign()).detach()
    """
ATTACKED = LOOP.replace("(model(x), y)", "(model(attack(model, x, y)), y)")
STAGE_0 = """\
        "managed_gradient_accumulation": False,
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": 0},
"""


def test_the_backward_of_an_attack_stays_and_so_does_what_clears_its_gradients(tmp_path: Path) -> None:
    after = convert(tmp_path, body(ATTACK) + ATTACKED)
    assert "    F.mse_loss(model(x), y).backward()\n    return" in after and STAGE_0 in after
    assert "    optimizer.zero_grad()\n    loss = F.mse_loss(model(attack(model, x, y)), y)\n" in after
    assert "    engine.backward(loss, scale_wrt_gas=False)\n    engine.step()\n" in after


def test_an_attack_in_another_file_counts(tmp_path: Path) -> None:
    attack = "import torch\nimport torch.nn.functional as F\n" + textwrap.dedent(ATTACK).replace(".grad.sign()", "")
    (result,) = run(tmp_path, attack=attack, train=HEADER + "from attack import attack\n" + ATTACKED).files
    assert result.path.name == "train.py" and STAGE_0 in (result.after or b"").decode()


def test_a_clearing_behind_an_attack_and_a_step_stays(tmp_path: Path) -> None:
    text = ATTACKED.replace("    optimizer.zero_grad()\n", "") + "    attack(model, x, y)\n    optimizer.zero_grad()\n"
    assert "engine.step()\n    attack(model, x, y)\n    optimizer.zero_grad()\n" in convert(
        tmp_path, body(ATTACK) + text
    )


def test_the_gradient_of_an_input_alone_keeps_stage_1(tmp_path: Path) -> None:
    attack = body(ATTACK).replace("F.mse_loss(model(x), y).backward()", "g, = torch.autograd.grad(model(x).sum(), x)")
    after = convert(tmp_path, attack.replace("x.grad.sign()", "g.sign()") + ATTACKED)
    assert '"zero_optimization": {"stage": 1},' in after and "    engine.backward(loss)\n" in after


def test_a_step_takes_what_a_helper_of_several_losses_leaves(tmp_path: Path) -> None:
    after = convert(
        tmp_path,
        body("""
        def go_back(*losses):
            for loss in losses:
                loss.backward()


        def train(first, second, one, two):
            for x, y in DataLoader(data, batch_size=4):
                one.zero_grad()
                two.zero_grad()
                go_back(F.mse_loss(first(x), y), F.mse_loss(second(x), y))
                one.step()
                two.step()


        first, second = Net(), nn.Linear(4, 1)
        one = torch.optim.SGD(first.parameters(), lr=0.1)
        two = torch.optim.Adam(second.parameters())
        train(first, second, one, two)
        """),
    )
    assert "        loss.backward()\n" in after and after.count(".step()\n") == 2 and "engine.backward" not in after
