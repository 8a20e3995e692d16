"""Plain training loops whose classes ``importlib.import_module()`` finds, by names of which parts are written."""

from __future__ import annotations

from pathlib import Path

import examples
import pytest
from plain_loops import HEADER, run

MODEL = (
    HEADER
    + """

class GanModel:
    def __init__(self):
        self.net = Net()
        self.optimizer = torch.optim.Adam(self.net.parameters())

    def set_input(self, batch):
        self.x, self.y = batch

    def optimize(self):
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.net(self.x), self.y)
        loss.backward()
        self.optimizer.step()
"""
)
DATA = """\
import torch
from torch.utils.data import Dataset


class Base(Dataset):
    def __getitem__(self, index):
        pass


class Pairs(Base):
    def __getitem__(self, index):
        return torch.zeros(4), torch.zeros(1) + index

    def __len__(self):
        return 8
"""
TRAIN = """\
import importlib

from torch.utils.data import DataLoader


def find_model(name):
    FIND


def find_dataset(name):
    return importlib.import_module(f"pairs_{name}").__dict__["Pairs"]


class Data:
    def __init__(self):
        self.loader = DataLoader(find_dataset("data")(), batch_size=4)

    def __iter__(self):
        for batch in self.loader:
            yield batch


def main():
    data = Data()
    model = find_model("gan")()
    for batch in data:
        model.set_input(batch)
        model.optimize()


if __name__ == "__main__":
    main()
"""
SEARCH = """\
file_name = "gan_" + name + "_model"
    library = importlib.import_module(file_name)
    found = None
    for key, cls in library.__dict__.items():
        if key.lower() == name + "model":
            found = cls
    return found"""


@pytest.mark.parametrize(
    "find",
    [
        SEARCH,
        'return getattr(importlib.import_module("gan_{}_model".format(name)), name.title() + "Model")',
        'return vars(importlib.import_module("gan_%s_model" % name))[name.title() + "Model"]',
    ],
)
def test_the_loader_of_a_model_that_is_found_by_name_is_divided(tmp_path: Path, find: str) -> None:
    files = {"gan_first_model": MODEL, "pairs_data": DATA, "train": TRAIN.replace("FIND", find)}
    imports = "import gan_first_model, pairs_data\n"  # as another file of the program has them
    report = run(tmp_path, **files, names=imports + "import train\n")
    results = {result.path.stem: result for result in report.files}
    assert not [problem for result in results.values() for problem in examples.problems(result)]
    after = {name: result.after.decode() for name, result in results.items() if result.after is not None}
    assert "self.loader = shard(DataLoader(" in after["train"]
    assert "    init_distributed()\n    main()\n" in after["train"]
    assert "model=self.net,\n" in after["gan_first_model"]
    assert not [finding for result in results.values() for finding in result.findings if finding.help]


def test_a_module_of_which_no_part_is_written_is_unknown(tmp_path: Path) -> None:
    text = TRAIN.replace("FIND", "return importlib.import_module(name).GanModel")
    report = run(tmp_path, gan_first_model=MODEL, pairs_data=DATA, train=text, names="import gan_first_model, train\n")
    after = {result.path.stem for result in report.files if result.after is not None}
    assert "train" not in after
