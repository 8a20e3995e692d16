"""Models that come from outside of the files, and that a class or function copies before their engine exists."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from plain_loops import HEADER, convert, run

FIT = """\
opt = torch.optim.SGD(MODEL.parameters(), lr=0.1)
for x, y in DataLoader(data, batch_size=4):
    opt.zero_grad()
    F.mse_loss(MODEL(x), TEACHER(x)).backward()
    opt.step()
"""
EARLY = (
    "this copy begins with each rank's own weights: the model comes from outside, "
    "and the engine, which is made later, gives all ranks rank 0's"
)


def _fit(model: str, teacher: str, columns: int) -> str:
    return textwrap.indent(FIT.replace("MODEL", model).replace("TEACHER", teacher), " " * columns)


@pytest.mark.parametrize(
    "copied",
    ["    teacher = copy.deepcopy(net)\n", "    teacher = Net()\n    teacher.load_state_dict(net.state_dict())\n"],
)
def test_a_given_model_is_shared_before_a_function_copies_it(copied: str, tmp_path: Path) -> None:
    """The copy kept each rank's own weights, where the engine gives the model rank 0's."""
    text = f"{HEADER}import copy\n\n\ndef train(net):\n{copied}{_fit('net', 'teacher', 4)}"
    assert "    init_distributed()\n    share_weights(net)\n" in convert(tmp_path, text)


INIT = """\
import copy


class Trainer:
    def __init__(self, net, data):
        self.net = net
        self.teacher = copy.deepcopy(net)
        LOADER

    def fit(self):
"""


def test_a_given_model_is_shared_before_a_class_copies_it(tmp_path: Path) -> None:
    init = INIT.replace("LOADER", "self.loader = DataLoader(data, batch_size=4)")
    text = f"{HEADER}{init}{_fit('self.net', 'self.teacher', 8)}".replace(
        "DataLoader(data, batch_size=4):", "self.loader:"
    )
    assert "        init_distributed()\n        share_weights(net)\n" in convert(tmp_path, text)


def test_a_copy_before_the_method_that_starts_the_ranks_is_for_review(tmp_path: Path) -> None:
    text = f"{HEADER}{INIT.replace('LOADER', 'self.epochs = 1')}{_fit('self.net', 'self.teacher', 8)}"
    report = run(tmp_path, train=text)
    assert [f.message for _, f in report.findings(Severity.REVIEW)] == [EARLY]


def test_a_model_that_the_program_makes_or_copies_nowhere_is_not_shared(tmp_path: Path) -> None:
    given = f"{HEADER}\n\ndef train(net):\n{_fit('net', 'Net()', 4)}"
    (tmp_path / "a").mkdir()
    assert "share_weights" not in convert(tmp_path / "a", given)
    made = f"{HEADER}import copy\n\n\ndef train(net):\n    other = copy.deepcopy(net)\n{_fit('net', 'other', 4)}\n\n"
    (tmp_path / "b").mkdir()
    assert "share_weights" not in convert(tmp_path / "b", f"{made}train(Net())\n")
