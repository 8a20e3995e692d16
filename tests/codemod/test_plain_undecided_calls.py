"""Calls of ``backward()`` and ``step()`` beside a converted loop: none stays that nothing has decided on."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from ds_migrate.rules.codes import Code
from plain_loops import HEADER, LOOP, blocked, convert, run

SECOND = """\
    other.zero_grad()
    second_loss = F.mse_loss(other(x), y)
    second_loss.backward()
    {step}
"""
MADE = "second = torch.optim.SGD(other.parameters(), lr=0.1)\n"


def reviews(folder: Path, made: str, step: str, **files: str) -> list[tuple[str, str]]:
    """Return the reviews of calls in a script that also trains another module."""
    before, _, loop = LOOP.partition("for x")
    text = f"{HEADER}import json\nother = Net()\n{made}{before}for x{loop}{SECOND.format(step=step)}"
    report = run(folder, train=text, **files)
    assert not list(report.findings(Severity.BLOCKED))
    found = [(finding.code, finding.message) for _, finding in report.findings(Severity.REVIEW)]
    return [(code, message.partition(" stays as it is")[0]) for code, message in found if " stays as it is" in message]


@pytest.mark.parametrize(
    ("made", "step"),
    [
        ("from elsewhere import make\nsecond = make(other)\n", "second.step()"),
        ("held = json.loads('{}')\nheld['b'] = torch.optim.SGD(other.parameters(), lr=0.1)\n", "held['b'].step()"),
        (f"globals()['solver'] = {MADE.partition('= ')[2]}", "solver.step()"),
        (f"class Box: pass\nbox = Box()\nsetattr(box, str('b'), {MADE.partition('= ')[2].strip()})\n", "box.b.step()"),
        ("from elsewhere import make\nsecond = make(other)\n", "second.step(lambda: second_loss)"),
    ],
)
def test_the_step_of_what_is_not_known_is_reviewed(made: str, step: str, tmp_path: Path) -> None:
    assert reviews(tmp_path, made, step) == [(Code.PLAIN_STEP, step)]


def test_a_step_in_a_function_that_gets_an_optimizer_by_map_is_reviewed(tmp_path: Path) -> None:
    assert reviews(tmp_path, MADE, "list(map(lambda o: o.step(), [second]))") == [(Code.PLAIN_STEP, "o.step()")]


@pytest.mark.parametrize(
    ("made", "step"),
    [
        ("from simulators import make\nenvironment = make(other)\n", "environment.step(3)"),
        ("from simulators import make\nenv = make(other)\n", "env.step()"),
        ("schedule = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(other.parameters()), 1)\n", "schedule.step()"),
        ("profile = torch.profiler.profile()\n", "profile.step()"),
        ("class Clock:\n    def step(self): pass\nclock = Clock()\n", "clock.step()"),
    ],
)
def test_steps_that_train_nothing_are_not(made: str, step: str, tmp_path: Path) -> None:
    assert reviews(tmp_path, made, step) == []


HELPER = """\
class Second:
    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self, loss):
        loss.backward()
"""


def test_a_backward_pass_in_a_file_beside_is_reviewed_where_it_may_run(tmp_path: Path) -> None:
    beside = {"helper": f"import torch\n{HELPER}", "table": "from helper import Second\nkinds = {'b': Second}\n"}
    made = "import table\nsecond = vars(table)[input()](None)\n"
    assert reviews(tmp_path, made, "second.step(second_loss)", **beside) == [(Code.PLAIN_BACKWARD, "loss.backward()")]
    for text in ("import helper\n", "from helper import Second\n"):  # nothing names the class, but to import it
        assert reviews(tmp_path, "import table\n", "pass", **{**beside, "table": text}) == []


def test_a_backward_pass_of_another_script_is_not_reviewed(tmp_path: Path) -> None:
    helper = "import torch\nscale = 2\nif __name__ == '__main__':\n    torch.ones(1, requires_grad=True).backward()\n"
    assert reviews(tmp_path, "from helper import scale\n", "pass", helper=helper) == []


@pytest.mark.parametrize(
    ("line", "other"),
    [
        ("loss.backward()", "torch.Tensor.backward(loss)"),
        ("optimizer.step()", "getattr(optimizer, 'step')()"),
        ("optimizer.step()", "go = optimizer.step\n    go()"),
    ],
)
def test_operations_that_are_no_calls_of_a_method_are_refused(line: str, other: str, tmp_path: Path) -> None:
    ((code, message),) = blocked(tmp_path, HEADER + LOOP.replace(line, f"{line}\n    {other}"))
    assert code == Code.PLAIN_UNTRACED and message.endswith("is not a call that one of an engine could replace")


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("backward(loss)", "backward(loss) is not a call that one of an engine could replace"),
        ("torch.autograd.backward([loss])", "torch.autograd.backward() takes several losses"),
        ("losses = [loss]\n    torch.autograd.backward(losses)", "torch.autograd.backward() takes several losses"),
    ],
)
def test_the_backward_of_torch_autograd_is_refused_by_any_name(call: str, reason: str, tmp_path: Path) -> None:
    text = (
        HEADER
        + "from torch.autograd import backward\n"
        + LOOP.replace("loss.backward()", f"loss.backward()\n    {call}")
    )
    assert blocked(tmp_path, text) == [(Code.PLAIN_UNTRACED, reason)]


@pytest.mark.parametrize("given", ["loss", "tensors=loss"])
def test_the_backward_of_torch_autograd_becomes_that_of_the_engine_where_it_is_given_one_loss(
    given: str, tmp_path: Path
) -> None:
    text = HEADER + LOOP.replace("loss.backward()", f"torch.autograd.backward({given})")
    assert "engine.backward(loss" in convert(tmp_path, text)
