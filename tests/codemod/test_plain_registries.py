"""Plain training loops whose networks, losses and data sets are found in registries, by names in a config."""

from __future__ import annotations

from pathlib import Path

import examples
import pytest
from ds_migrate.findings import Severity
from plain_loops import HEADER, LOOP, run

REGISTRY = """\
class Registry:
    def __init__(self):
        self.kept = {}

    def register(self, kind=None):
        if kind is None:
            def keep(found):
                self.kept[found.__name__] = found
                return found

            return keep
        self.kept[kind.__name__] = kind
        return kind

    def get(self, name):
        found = self.kept.get(name)
        if found is None:
            raise KeyError(name)
        return found


NETS = Registry()
LOSSES = Registry()
MODELS = Registry()
"""
PARTS = HEADER.replace("data = Tensor", "DATA = Tensor").replace(
    "\n\nclass Net", "\nfrom registry import LOSSES, NETS\n\n\n@NETS.register()\nclass Net"
) + (
    "\n\n@LOSSES.registerCALL\nclass Loss(nn.Module):\n    def forward(self, x, y):\n        return F.mse_loss(x, y)\n"
)
MODEL = """\
import torch
from registry import LOSSES, MODELS, NETS


class Base:
    def make_optimizer(self, kind, params, **options):
        if kind == "SGD":
            return torch.optim.SGD(params, **options)
        return torch.optim.Adam(params, **options)


@MODELS.register()
class Model(Base):
    def __init__(self, config):
        self.net = NETS.get(config["net"])()
        self.loss = LOSSES.get(config["loss"])()
        params = []
        for name, value in self.net.named_parameters():
            if value.requires_grad:
                params.append(value)
        self.optimizer = self.make_optimizer(config["kind"], params, **config["options"])

    def feed(self, batch):
        self.x, self.y = batch

    def update(self):
        self.optimizer.zero_grad()
        loss = self.loss(self.net(self.x), self.y)
        loss.backward()
        self.optimizer.step()
"""
TRAIN = """\
import model
import parts
from registry import MODELS
from torch.utils.data import DataLoader


def make_loader(phase):
    options = dict(dataset=parts.DATA, batch_size=4 if phase == "train" else 1)
    return DataLoader(**options)


def make_loaders(config):
    train, others = None, []
    for phase, options in config["data"].items():
        if phase == "train":
            train = make_loader(phase)
            epochs = config["steps"] // len(train)
        elif phase == "val":
            other = make_loader(phase)
            others.append(other)
    return train, others, epochs


def main(config):
    train, others, epochs = make_loaders(config)
    trained = MODELS.get(config["model"])(config)
    for epoch in range(epochs):
        for batch in train:
            trained.feed(batch)
            trained.update()
        for other in others:
            for batch in other:
                trained.feed(batch)


if __name__ == "__main__":
    main({})
"""


@pytest.fixture(params=["()", ""])
def converted(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    files = {"registry": REGISTRY, "parts": PARTS.replace("CALL", request.param), "model": MODEL, "train": TRAIN}
    results = {result.path.stem: result for result in run(tmp_path, **files).files}
    assert not [problem for result in results.values() for problem in examples.problems(result)]
    assert not [f for result in results.values() for f in result.findings if f.help]
    return {name: result.after.decode() for name, result in results.items() if result.after is not None}


def test_an_engine_holds_the_network_of_a_registry(converted: dict[str, str]) -> None:
    assert "        self.engine, *_ = deepspeed.initialize(\n            model=self.net,\n" in converted["model"]
    assert "self.loss(self.engine(self.x), self.y)" in converted["model"]


def test_the_loader_that_trains_is_divided_before_its_length_is_asked(converted: dict[str, str]) -> None:
    assert (
        "            train = make_loader(phase)\n            train = shard(train)\n"
        '            epochs = config["steps"] // len(train)\n'
    ) in converted["train"]
    assert converted["train"].count("shard(") == 1 and "    init_distributed()\n" in converted["train"]


def test_a_length_that_is_asked_for_before_the_loader_is_divided_is_for_review(tmp_path: Path) -> None:
    text = (
        "    steps = 30 // len(loader)\n    return loader, steps\n\n\ntorch.manual_seed(0)\nmodel = Net()\n"
        "optimizer = torch.optim.Adam(model.parameters())\ntrain_loader, steps = make()\nval_loader, _ = make()\n"
        "for x, y in train_loader:\n    optimizer.zero_grad()\n    F.mse_loss(model(x), y).backward()\n"
        "    optimizer.step()\nfor x, y in val_loader:\n    print(model(x), len(train_loader))\n"
    )
    report = run(tmp_path, train=HEADER + "def make():\n    loader = DataLoader(data, batch_size=4)\n" + text)
    found = {(f.line, f.message) for _, f in report.findings(Severity.REVIEW)}
    message = "this counts the batches of all data, and on several ranks each one has a share of them"
    assert found == {(HEADER.count("\n") + 3, message)}


@pytest.mark.parametrize("data, length", [("whole", "len(whole)"), ("whole", "size"), ("part", "(size - 8)")])
def test_a_number_of_batches_of_all_data_is_for_review(data: str, length: str, tmp_path: Path) -> None:
    text = (
        f"from torch.utils.data import random_split\nwhole = TensorDataset(torch.ones(30, 4), torch.ones(30, 1))\n"
        f"size = len(whole)\npart, rest = random_split(whole, [size - 8, 8])\nmodel = Net()\n"
        f"loader = DataLoader({data}, batch_size=4)\n"
        f"optimizer = torch.optim.Adam(model.parameters())\nevery = {length} // (2 * loader.batch_size)\n"
        "for index, (x, y) in enumerate(loader):\n    optimizer.zero_grad()\n    F.mse_loss(model(x), y).backward()\n"
        "    optimizer.step()\n    if index % every == 0:\n        model.eval()\n"
    )
    report = run(tmp_path, train=HEADER + text)
    found = [(f.line, f.message) for _, f in report.findings(Severity.REVIEW)]
    message = "this counts the batches of all data, and on several ranks each one has a share of them"
    assert found == [(HEADER.count("\n") + 8, message)]


def test_a_number_of_batches_that_is_only_printed_is_that_of_the_share(tmp_path: Path) -> None:
    """The length of all data is replaced there, so that nothing is left to review."""
    shown = "for step, (x, y) in enumerate(loader):\n    print(step, len(data) // batch_size)\n"
    report = run(tmp_path, train=HEADER + "batch_size = 4\n" + LOOP.replace("for x, y in loader:\n", shown))
    assert b"print(step, count_samples(loader) // batch_size)" in (report.files[0].after or b"")
    assert not list(report.findings(Severity.REVIEW))


@pytest.mark.parametrize(
    "table", ["{Trainer.code(): Trainer}", '{"plain": Trainer}', "{kind.code(): kind for kind in [Trainer]}"]
)
def test_a_trainer_is_found_in_a_dict_by_the_name_that_it_has_itself(table: str, tmp_path: Path) -> None:
    trainers = (
        HEADER.replace("data = Tensor", "DATA = Tensor")
        + f"""
class Trainer:
    def __init__(self, model, loader):
        self.model, self.loader = model, loader
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    @classmethod
    def code(cls):
        return "plain"

    def train(self):
        for x, y in self.loader:
            OWN_STEP


TRAINERS = {table}


def make(kind, model, loader):
    trainer = TRAINERS[kind]
    return trainer(model, loader)
"""
    )
    main = """
from torch.utils.data import DataLoader
from trainers import DATA, Net, make

if __name__ == "__main__":
    make("plain", Net(), DataLoader(DATA, batch_size=4)).train()
"""
    results = {result.path.stem: result for result in run(tmp_path, trainers=trainers, main=main).files}
    after = (results["main"].after or b"").decode()
    assert "    init_distributed()\n" in after and "shard(DataLoader(DATA, batch_size=4))" in after
