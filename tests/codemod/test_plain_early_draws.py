"""Random numbers that a program draws before its ranks start."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from plain_loops import HEADER, LOOP, body, convert, run

MAIN = """

def main():
    loader = DataLoader(TensorDataset(xs, xs), batch_size=4, shuffle=True)
    MAKE_MODEL
    for x, y in loader:
        STEP


if __name__ == "__main__":
    main()
"""
IMPORTS = "import random\nimport numpy as np\nfrom sklearn.model_selection import train_test_split\n"
DRAWN = "data.py draws these random numbers while it is imported, before ranks start: each rank has other ones"


def _start(tmp_path: Path, lines: str) -> str:
    converted = convert(tmp_path, IMPORTS + HEADER + lines + MAIN)
    return next(line for line in converted.splitlines() if line.strip() == "init_distributed()")


@pytest.mark.parametrize(
    "lines",
    [
        "xs = torch.randn(8, 4)\n",
        "xs = torch.empty(8, 4).uniform_(-1, 1)\n",
        "xs = nn.init.xavier_uniform_(torch.empty(8, 4))\n",
        "xs = torch.tensor(np.random.rand(8, 4))\n",
        "xs = torch.tensor([random.random()] * 8)\n",
        "torch.manual_seed(0)\nxs, _ = train_test_split(data)\n",
        "def make():\n    return torch.randn(8, 4)\n\n\nxs = make()\n",
        "for _ in range(2):\n    xs = torch.randn(8, 4)\n",
    ],
)
def test_ranks_start_before_a_script_draws_random_numbers(lines: str, tmp_path: Path) -> None:
    assert _start(tmp_path, lines) == "init_distributed()"


@pytest.mark.parametrize(
    "lines",
    [
        "torch.manual_seed(0)\nxs = torch.randn(8, 4)\n",
        "def seed():\n    np.random.seed(1)\n\n\nseed()\nxs = torch.tensor(np.random.rand(8, 4))\n",
        "xs, _ = train_test_split(data, random_state=0)\n",
        "xs = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))\n",
        "xs = torch.tensor(np.random.default_rng(0).normal(8, 4))\n",
    ],
)
def test_ranks_start_in_the_block_of_main_behind_numbers_with_a_seed(lines: str, tmp_path: Path) -> None:
    assert _start(tmp_path, lines) == "    init_distributed()"


def test_numbers_that_an_imported_module_draws_are_for_review(tmp_path: Path) -> None:
    result = run(
        tmp_path, train="from data import xs\n" + HEADER + MAIN, data="import torch\n\nxs = torch.randn(8, 4)\n"
    )
    assert [f.message for _, f in result.findings(Severity.REVIEW)] == [DRAWN]


def test_numbers_that_a_script_draws_for_another_loop_alone_are_no_review(tmp_path: Path) -> None:
    trainer = """
        class Trainer:
            def __init__(self, model):
                self.model = model
                self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

            def fit(self, loader):
                for x, y in loader:
                    self.optimizer.zero_grad()
                    F.mse_loss(self.model(x), y).backward()
                    self.optimizer.step()
        """
    xs = "xs = torch.randn(8, 4)\n"
    script = "from trainer import Trainer\n" + HEADER + xs + MAIN.replace("main()", "other_main()")
    messages = [f.message for _, f in run(tmp_path, trainer=body(trainer), demo=script).findings(Severity.REVIEW)]
    assert not [message for message in messages if "before ranks start" in message]


def test_numbers_that_a_module_draws_behind_a_seed_of_the_script_are_no_review(tmp_path: Path) -> None:
    script = "import torch\ntorch.manual_seed(0)\nfrom data import xs\n" + HEADER + MAIN
    assert not list(
        run(tmp_path, train=script, data="import torch\n\nxs = torch.randn(8, 4)\n").findings(Severity.REVIEW)
    )


def test_ranks_start_before_a_function_that_hands_over_the_one_that_trains(tmp_path: Path) -> None:
    text = """
        class Search:
            def run(self):
                rates = torch.rand(5)
                self.set_up()
                self.searcher.run(rates)

            def set_up(self):
                def fitness(lr):
                    model = Net()
                    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
                    for x, y in DataLoader(data, batch_size=4):
                        STEP

                self.searcher = searches.Searcher(fitness)
        """
    after = convert(tmp_path, "import searches\n" + body(text))
    assert "    def run(self):\n        init_distributed()\n" in after
    assert after.count("init_distributed()") == after.count("(self):\n        init_distributed()\n") == 2


LEARNER = """
    class Learner:
        def __init__(self, hidden=4):
            MADE

        def learn(self):
            child = Net()
            optimizer = torch.optim.SGD(child.parameters(), lr=0.1)
            for x, y in DataLoader(data, batch_size=4):
                optimizer.zero_grad()
                F.mse_loss(child(x), y).backward()
                optimizer.step()
    """


def _starts_in_init(tmp_path: Path, made: str) -> bool:
    after = convert(tmp_path, body(LEARNER.replace("MADE", made)))
    assert after.count("init_distributed()") == 1
    return "hidden=4):\n        init_distributed()\n" in after


@pytest.mark.parametrize("made", ["self.controller = nn.Linear(hidden, 2)", "self.controller = Net()"])
def test_ranks_start_before_an_object_makes_weights_that_no_engine_has(made: str, tmp_path: Path) -> None:
    """Each rank had a separate controller, and trained by other policies."""
    assert _starts_in_init(tmp_path, made)


@pytest.mark.parametrize("made", ["self.hidden = hidden", "self.criterion = nn.MSELoss()"])
def test_ranks_start_where_an_object_trains_if_it_has_made_no_weights(made: str, tmp_path: Path) -> None:
    assert not _starts_in_init(tmp_path, made)


@pytest.mark.parametrize("more", ["", "else:\n    class Own:\n        pass\n"])
def test_ranks_start_behind_definitions_under_a_condition(more: str, tmp_path: Path) -> None:
    """They started as the module was imported, which others do for its functions."""
    helpers = f"HAS_TORCH = True\n\nif HAS_TORCH:\n    class Own(torch.nn.Linear):\n        pass\n{more}\n\n"
    loop = "data = TensorDataset(torch.ones(8, 2), torch.ones(8, 1))\n" + LOOP.replace("Net()", "Own(2, 1)")
    imports = (
        "import torch\nimport torch.nn.functional as F\nfrom torch.utils.data import DataLoader, TensorDataset\n\n"
    )
    after = convert(tmp_path, imports + helpers + "if __name__ == '__main__':\n" + textwrap.indent(loop, "    "))
    assert "if __name__ == '__main__':\n    init_distributed()\n" in after
