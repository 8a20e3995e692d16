"""Plain training loops in classes that others are built on."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from plain_loops import HEADER, LOOP, body, convert

EXPERIMENT = """
    class Base:
        def __init__(self):
            self.model = self.build_model()

        def build_model(self):
            raise NotImplementedError

        def validate(self):
            pass

        def train(self):
            pass


    class Experiment(Base):
        def build_model(self):
            return Net()

        def select_optimizer(self):
            return torch.optim.Adam(self.model.parameters(), lr=0.1)

        def validate(self):
            return sum(F.mse_loss(self.model(x), y).item() for x, y in loader)

        def train(self):
            best = 9.0
            optimizer = self.select_optimizer()
            for x, y in loader:
                optimizer.zero_grad()
                F.mse_loss(self.model(x), y).backward()
                optimizer.step()
                if self.validate() > best:
                    break
                torch.save(self.model.state_dict(), "best.pt")
            self.model.load_state_dict(torch.load("best.pt"))


    loader = DataLoader(data, batch_size=4)
    if __name__ == "__main__":
        experiment = Experiment()
        experiment.train()
    """


@pytest.mark.parametrize("empty", ["raise NotImplementedError", '"""Return the module that trains."""'])
def test_methods_that_replace_empty_ones_are_those_that_run(empty: str, tmp_path: Path) -> None:
    after = convert(tmp_path, body(EXPERIMENT.replace("raise NotImplementedError", empty)))
    assert "model=self.model,\n" in after
    assert "if rank_0_decides(self.validate() > best):" in after
    assert "            init_distributed()" not in after


def test_a_break_out_of_a_loop_keeps_no_rank_from_what_stands_behind_the_loop(tmp_path: Path) -> None:
    after = convert(tmp_path, body(EXPERIMENT))
    assert "        wait_for_all_ranks()\n        self.model.load_state_dict(torch.load(" in after


def test_ranks_start_behind_the_docstring_of_the_init_that_is_no_overload(tmp_path: Path) -> None:
    overloads = """
    class Trainer:
        @typing.overload
        def __init__(self) -> None: ...

        @typing.overload
        def __init__(self, rate: float) -> None: ...

        def __init__(self, rate=0.1):
            self.model = Net()
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate)

        def fit(self):
            for x, y in DataLoader(data, batch_size=4):
                OWN_STEP
    """
    after = convert(tmp_path, body(overloads))
    assert after.count("    init_distributed()\n") == 1
    assert "    def __init__(self, rate=0.1):\n        init_distributed()\n" in after


def test_a_class_that_is_built_on_a_base_of_the_one_around_it_is_read_to_the_end(tmp_path: Path) -> None:
    nested = """
    class Base:
        def worker(self):
            return object


    class Inner(Base):
        def worker(self):
            class Worker(super().worker()):
                pass
            return Worker
    """
    assert "engine.step()" in convert(tmp_path, HEADER + LOOP + textwrap.dedent(nested))


SIBLINGS = """
    class Agent:
        def describe(self):
            return SHARED


    class First(Agent):
        def __init__(self):
            self.net = Net()
            self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

        def learn(self, x, y):
            self.optimizer.zero_grad()
            F.mse_loss(self.net(x), y).backward()
            self.optimizer.step()


    class Second(Agent):
        def __init__(self):
            self.net = Net()
            self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.1)

        def learn(self, x, y):
            self.optimizer.zero_grad()
            F.l1_loss(self.net(x), y).backward()
            self.optimizer.step()


    agent = First()
    for x, y in DataLoader(data, batch_size=4):
        agent.learn(x, y)
"""


def test_classes_of_one_base_have_separate_optimizers(tmp_path: Path) -> None:
    after = convert(tmp_path, body(SIBLINGS.replace("SHARED", "None")))
    assert after.count("deepspeed.initialize(") == 2
    assert after.count("self.engine.step()") + after.count("_engine.step()") == 2


def test_an_optimizer_that_the_base_names_is_one_of_several(tmp_path: Path) -> None:
    after = convert(tmp_path, body(SIBLINGS.replace("SHARED", "self.optimizer")))
    assert after.count("self.engine, *_ = deepspeed.initialize(") == after.count("self.engine.step()") == 2


FOUND_BY_NAME = """
    class Trainer:
        def __init__(self, rate):
            self.rate = rate
            self.loader = DataLoader(data, batch_size=4)

        def prepare(self):
            self.model = Net()
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.rate)

        def fit(self):
            self.prepare()
            for x, y in self.loader:
                OWN_STEP


    class Faster(Trainer):
        def __init__(self, rate):
            self.loader = DataLoader(data, batch_size=8)
            super().__init__(rate * 10)


    """


def test_ranks_start_in_each_class_that_a_name_may_choose(tmp_path: Path) -> None:
    after = convert(tmp_path, "import sys\n" + body(FOUND_BY_NAME) + "find_class(sys.argv[1])(0.1).fit()\n")
    assert after.count("    def __init__(self, rate):\n        init_distributed()\n") == 2, "the base may be chosen too"


def test_ranks_start_once_where_the_class_is_made_by_its_name(tmp_path: Path) -> None:
    after = convert(tmp_path, body(FOUND_BY_NAME) + "Faster(0.1).fit()\n")
    assert after.count("init_distributed()\n") == 1 and "    init_distributed()" not in after
