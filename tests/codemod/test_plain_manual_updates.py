"""Loops that update weights, or set gradients, by hand: named, as an engine has nothing to take over."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from ds_migrate.rules.codes import Code
from plain_loops import HEADER, LOOP, blocked, convert, run

BY_HAND = "weights are updated from gradients by hand, without an optimizer"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (
            """
            grads = torch.autograd.grad(loss, model.parameters())
            for p, g in zip(model.parameters(), grads):
                p -= 0.1 * g
            """,
            5, BY_HAND,
        ),
        ("for p in model.parameters():\n    p.data.sub_(p.grad.data * lr)\n", 3, BY_HAND),
        ("for name, p in model.named_parameters():\n    p.data.add_(p.grad, alpha=-0.1)\n", 3, BY_HAND),
        ("for p in model.parameters():\n    p.data = p.data - lr * p.grad\n", 3, BY_HAND),
        ("with torch.no_grad():\n    w -= lr * w.grad\n", 3, BY_HAND),
        (
            """
            grads = torch.autograd.grad(loss, list(model.parameters()))
            for p, g in zip(model.parameters(), grads):
                p.grad = g
            optimizer.step()
            """,
            5, "step() uses gradients that are set by hand, without backward()",
        ),
    ],
)  # fmt: skip
def test_a_loop_without_backward_and_step_is_named(text: str, line: int, message: str, tmp_path: Path) -> None:
    text = "import torch\n" + textwrap.dedent(text)
    assert blocked(tmp_path, text) == [(Code.PLAIN_GRADIENTS, message)]
    ((_, finding),) = run(tmp_path, train=text).findings()
    assert finding.line == line


@pytest.mark.parametrize(
    "text",
    [
        "for g, d in zip(model.parameters(), ema.parameters()):\n    d.data.copy_(g.data)\nx.grad\n",
        "loss.backward()\nwith torch.no_grad():\n    x -= eps * x.grad.sign()\n",
        "for p in model.parameters():\n    total += p.grad.norm()\n",
        "class Own(optim.Optimizer):\n    def step(self):\n        for p in self.all: p.data -= p.grad\nx.backward()",
        "d = torch.zeros_like(x)\nopt = optim.Adam([d])\nd.grad = estimate(x + d)\nopt.step()\n",
        "loss.backward()\nfor x in inputs:\n    x.data += eps * x.grad.sign()\n",
    ],
)
def test_averages_attacks_and_optimizers_are_no_training_loops(text: str, tmp_path: Path) -> None:
    assert not run(tmp_path, train=f"import torch\n{text}").files


STEPS = "for p in {}:\n            p -= 0.1 * p.grad\n            p.grad = None"
SGD = f"""\
class SGD:
    def __init__(self, params):
        self.params = list(params)

    def step(self):
        {STEPS.format("self.params")}


"""


def test_an_optimizer_that_is_no_optimizer_of_torch_is_named(tmp_path: Path) -> None:
    loop = LOOP.replace("torch.optim.SGD(model.parameters(), lr=0.1)", "SGD(model.parameters())")
    assert blocked(tmp_path, HEADER + SGD + loop) == [(Code.PLAIN_GRADIENTS, BY_HAND)]


def test_a_function_that_steps_the_parameters_it_gets_is_named(tmp_path: Path) -> None:
    step = f"def sgd(params):\n    with torch.no_grad():\n        {STEPS.format('params')}\n\n\n"
    assert blocked(tmp_path, f"import torch\n{step}loss.backward()\nsgd([w, b])\n") == [(Code.PLAIN_GRADIENTS, BY_HAND)]


def test_a_step_by_hand_inside_of_a_loop_that_converts_stays(tmp_path: Path) -> None:
    inner = "fast = [p - 0.1 * g for p, g in zip(model.parameters(), torch.autograd.grad(loss, model.parameters()))]"
    after = convert(tmp_path, HEADER + LOOP.replace("    loss.backward()", f"    {inner}\n    loss.backward()"))
    assert f"    {inner}\n    engine.backward(loss)\n" in after


OPTIONAL = """\
loader = DataLoader(data, batch_size=4, shuffle=True)
model = Net()
if use:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
else:
    optimizer = {otherwise}
for x, y in loader:
    model.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    if use:
        optimizer.step()
    else:
        {update}
"""
UPDATE = "for p in model.parameters(): p.data.add_(p.grad, alpha=-0.1)"


def test_gradients_of_which_a_step_by_hand_is_made_have_no_engine(tmp_path: Path) -> None:
    ((code, message),) = blocked(tmp_path, HEADER + OPTIONAL.format(otherwise="None", update=UPDATE))
    assert code == Code.PLAIN_BACKWARD and "whether use holds or not" in message


def test_an_optimizer_of_each_branch_steps_by_one_engine(tmp_path: Path) -> None:
    adam = "torch.optim.Adam(model.parameters())"
    after = convert(tmp_path, HEADER + OPTIONAL.format(otherwise=adam, update="optimizer.step()"))
    assert "    engine.backward(loss" in after and after.count("    engine.step()") == 2


@pytest.mark.parametrize("made", ["{} if use else None", "None if not use else {}"])
def test_an_engine_is_made_where_there_is_an_optimizer(made: str, tmp_path: Path) -> None:
    sgd = "torch.optim.SGD(model.parameters(), lr=0.1)"
    loop = LOOP.replace(sgd, made.format(sgd))
    after = convert(tmp_path, HEADER + loop)
    assert "engine = None\nif optimizer is not None:\n    engine, *_ = deepspeed.initialize(\n" in after
    step = "    if optimizer is not None:\n        optimizer.step()\n"
    ((_, message),) = blocked(tmp_path, HEADER + loop.replace("    optimizer.step()\n", step))
    assert "whether optimizer is not None holds or not" in message
