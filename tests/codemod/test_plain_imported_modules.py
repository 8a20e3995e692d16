"""Plain training loops in modules that ``importlib.import_module()`` finds by name, or Python on its search path."""

from __future__ import annotations

from pathlib import Path

import examples
import pytest
from ds_migrate.files.discovery import discover
from ds_migrate.findings import Severity
from ds_migrate.pipeline import migrate
from plain_loops import HEADER, LOOP, PLAIN, run

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
        'return importlib.import_module("gan_" + name + "_model").__getattribute__(name.title() + "Model")',
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


def test_the_script_that_imports_its_model_by_name_prints_on_rank_0(tmp_path: Path) -> None:
    parse = "    parser = argparse.ArgumentParser()\n    options = parser.parse_args()\n    print(options)\n"
    train = TRAIN.replace("FIND", 'return importlib.import_module("nets." + name).GanModel')
    train = "import argparse\n" + train.replace("    main()\n", f"{parse}    main()\n")
    files = {"nets/__init__": "", "nets/gan": MODEL, "train": train}
    (tmp_path / "nets").mkdir()
    report = run(tmp_path, **files, pairs_data=DATA)
    after = {result.path.stem: result.after.decode() for result in report.files if result.after is not None}
    assert "    options = parser.parse_args()\n    if is_main_rank():\n        print(options)\n" in after["train"]
    assert '.add_argument("--local_rank"' in after["train"]


def test_a_package_without_init_is_found_in_a_folder_above_the_script(tmp_path: Path) -> None:
    train = TRAIN.replace("FIND", 'return importlib.import_module("nets." + name).GanModel')
    (tmp_path / "nets").mkdir()
    (tmp_path / "tools" / "gan").mkdir(parents=True)
    files = {"nets/gan": MODEL, "tools/gan/train": train, "tools/gan/pairs_data": DATA}
    report = run(tmp_path, **files)
    after = {result.path.stem: result.after.decode() for result in report.files if result.after is not None}
    assert "model=self.net,\n" in after["gan"] and "shard(DataLoader(" in after["train"]


def test_a_package_imports_by_name_what_is_in_it_and_not_itself(tmp_path: Path) -> None:
    """It was taken to make its loader for each module that it imports so: the loader was for review."""
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets" / "pairs.py").write_text(DATA)
    (tmp_path / "sets" / "__init__.py").write_text(
        "from importlib import import_module\nfrom torch.utils.data import DataLoader\n\n\nclass Data:\n"
        "    def __init__(self, names):\n        for name in names:\n"
        "            made = getattr(import_module('sets.' + name.lower()), name)()\n"
        "        self.loader = DataLoader(made, batch_size=4)\n"
    )
    loop = LOOP.replace("for x, y in loader:", "loader = sets.Data(['Pairs']).loader\nfor x, y in loader:")
    report = run(
        tmp_path, train="import sets\n" + HEADER + loop.replace("loader = DataLoader(data, batch_size=4)\n", "")
    )
    assert not list(report.findings(Severity.REVIEW))


def test_a_module_of_which_no_part_is_written_is_unknown(tmp_path: Path) -> None:
    text = TRAIN.replace("FIND", "return importlib.import_module(name).GanModel")
    report = run(tmp_path, gan_first_model=MODEL, pairs_data=DATA, train=text, names="import gan_first_model, train\n")
    after = {result.path.stem for result in report.files if result.after is not None}
    assert "train" not in after


FOUND_IN_FOLDER = """\
import importlib
import os

FOUND = {}


def register(cls):
    FOUND[cls.__name__] = cls
    return cls


def build(name):
    return FOUND[name]()


for file in sorted(os.listdir(os.path.dirname(__file__))):
    if file.endswith("_model.py"):
        importlib.import_module(PATTERN)
"""


@pytest.mark.parametrize("pattern", ['"found." + file[:-3]', 'f"found.{file[:-3]}"', '"found.%s" % file[:-3]'])
def test_a_program_has_the_modules_that_a_package_imports_from_its_folder(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "found").mkdir()
    model = MODEL.replace("class GanModel", "from found import register\n\n\n@register\nclass GanModel")
    train = TRAIN.replace('find_model("gan")()', 'build("GanModel")').replace("import importlib\n", "", 1)
    files = {
        "found/__init__": FOUND_IN_FOLDER.replace("PATTERN", pattern), "found/gan_model": model, "pairs_data": DATA,
        "train": "import importlib\n\nfrom found import build\n" + train,
    }  # fmt: skip
    results = {result.path.stem: result for result in run(tmp_path, **files).files}
    after = {name: result.after.decode() for name, result in results.items() if result.after is not None}
    assert "self.loader = shard(DataLoader(" in after["train"] and "    init_distributed()\n" in after["train"]
    assert "model=self.net,\n" in after["gan_model"]


SEARCH_PATHS = {
    "in the script": ("train.py", 'import sys\n\nsys.path.append("core")\n', "core/learner.py"),
    "by a name": (
        "tools/train.py",
        'import os\nimport sys\n\nL = os.path.join(os.path.dirname(__file__), "..", "lib")\nsys.path.insert(0, L)\n',
        "lib/learner.py",
    ),
    "in another file": ("tools/train.py", "import _init_paths\n", "lib/learner.py"),
}
INIT_PATHS = """
import os.path as osp
import sys


def add_path(path):
    if path not in sys.path:
        sys.path.insert(0, path)


add_path(osp.join(osp.dirname(__file__), "..", "lib"))
"""


@pytest.mark.parametrize(("script", "start", "learner"), [pytest.param(*v, id=k) for k, v in SEARCH_PATHS.items()])
def test_modules_of_a_folder_on_the_search_path_are_found(
    script: str, start: str, learner: str, tmp_path: Path
) -> None:
    files = {
        learner: "def fit(model, optimizer, loader):\n    for x, y in loader:\n        optimizer.zero_grad()\n"
        "        ((model(x) - y) ** 2).mean().backward()\n        optimizer.step()\n",
        "tools/_init_paths.py": INIT_PATHS,
    }
    run_it = "model = Net()\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    files[script] = f"{start}from learner import fit\n{HEADER}{run_it}fit(model, optimizer, DataLoader(data))\n"
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    report = migrate(discover([str(tmp_path)]), PLAIN)
    assert {str(file.path.relative_to(tmp_path)) for file in report.files if file.to_write} == {script, learner}


def test_a_module_that_a_star_import_gives_is_imported_no_second_time(tmp_path: Path) -> None:
    lines = 'with open(os.path.join("out", "log.txt"), "w") as file:\n    file.write("done")\n'
    report = run(tmp_path, utils="import os\n", train=f"from utils import *\n{HEADER}{LOOP}{lines}")
    after = {result.path.name: (result.after or b"").decode() for result in report.files}["train.py"]
    assert "is_main_rank() else os.devnull" in after and "import os" not in after


def test_a_package_with_a_folder_io_imports_that_of_python(tmp_path: Path) -> None:
    write = (
        "def keep(model):\n    buffer = io.BytesIO()\n    torch.save(model.state_dict(), buffer)\n    return buffer\n"
    )
    (tmp_path / "nets" / "io").mkdir(parents=True)
    files = {"nets/__init__": "", "nets/io/__init__": "", "nets/keeping": f"import io\n\nimport torch\n\n\n{write}"}
    report = run(tmp_path, **files, train=f"from nets.keeping import keep\n{HEADER}{LOOP}keep(model)\n")
    assert {result.path.name for result in report.files if result.to_write} == {"train.py"}
