"""Plain loops in projects whose files all import each other: each loop is converted with what it uses, and in time."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path
from typing import Any

import pytest
from ds_migrate.files.discovery import discover
from ds_migrate.findings import FileStatus, Report, Severity
from ds_migrate.pipeline import migrate
from ds_migrate.plain import conversion
from ds_migrate.plain.dataflow.statements import Statements
from ds_migrate.plain.programs import program
from ds_migrate.project.module_index import ModuleFacts, module_facts
from plain_loops import HEADER, LOOP, PLAIN, run

NETS = """\
import torch.nn as nn


def train_mode(net):
    return net.train()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 1)

    def forward(self, x):
        return self.fc(x)
"""
TRAINER = """\
def fit(net, optimizer, loader, loss_of):
    for x, y in loader:
        optimizer.zero_grad()
        loss = loss_of(net(x), y)
        loss.backward()
        optimizer.step()
"""
SCRIPT = """\
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from kit import Net, fit
from kit.data import samples

if __name__ == "__main__":
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    fit(net, optimizer, DataLoader(samples(), batch_size=4), F.mse_loss)
"""


def convert(folder: Path, files: dict[str, str]) -> Report:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return migrate(discover([str(folder)]), PLAIN)


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return a package whose ``__init__`` imports everything, with more files than one program may have."""
    monkeypatch.setattr(program, "MOST_FILES", 7)
    others = {f"kit/layer{n}.py": NETS for n in range(4)}
    names = "".join(f"from . import layer{n}\n" for n in range(4))
    return {
        "kit/__init__.py": f"{names}from .nets import *\nfrom .trainer import fit\n",
        "kit/nets.py": NETS,
        "kit/trainer.py": f"import torch\nimport kit\n\n\n{TRAINER}",
        "kit/data.py": "import torch\nfrom torch.utils.data import TensorDataset\nfrom kit import layer1\n\n\n"
        "def samples():\n    layer1.train_mode(layer1.Net())\n"
        "    return TensorDataset(torch.zeros(8, 4), torch.zeros(8, 1))\n",
        **others,
    }


def test_a_loop_is_converted_with_the_files_that_use_it(tmp_path: Path, package: dict[str, str]) -> None:
    report = convert(tmp_path, {**package, "main.py": SCRIPT})
    after = {file.path.name: (file.after or b"").decode() for file in report.files}
    assert set(after) == {"main.py", "trainer.py"}
    assert "engine.step()" in after["trainer.py"]
    assert "fit(net, engine, shard(DataLoader" in after["main.py"]


SAVING = """\
import torch


def save(net, path):
    torch.save(net.state_dict(), path)
"""
OWN_LOOP = SCRIPT.replace("from kit import Net, fit", "from kit import Net\nfrom kit.saving import save").replace(
    "if __name__", f"{TRAINER}\n\nif __name__"
)


def test_loops_whose_helper_changes_are_converted_together(tmp_path: Path, package: dict[str, str]) -> None:
    script = f"{OWN_LOOP}    save(net, 'net.pt')\n"
    report = convert(tmp_path, {**package, "kit/saving.py": SAVING, "one.py": script, "two.py": script})
    assert {f.path.name for f in report.files if f.status is FileStatus.CHANGED} == {"one.py", "two.py", "saving.py"}


def test_loops_whose_helper_changes_are_one_program_whatever_their_number(
    tmp_path: Path, package: dict[str, str]
) -> None:
    script = f"{OWN_LOOP}    save(net, 'net.pt')\n"
    scripts = {f"script{n}.py": script for n in range(9)}  # more files than a program that is not divided may have
    report = convert(tmp_path, {**package, "kit/saving.py": SAVING, **scripts})
    assert {f.path.name for f in report.files if f.status is FileStatus.CHANGED} == {"saving.py", *scripts}


def test_a_file_that_two_programs_use_is_never_changed(
    tmp_path: Path, package: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "LARGEST_PROGRAM", 1000)
    script = f"{OWN_LOOP}    save(net, 'net.pt')\n"
    report = convert(tmp_path, {**package, "kit/saving.py": SAVING, "one.py": script, "two.py": script})
    left = {file.path.name: [finding.message for finding in file.findings] for file in report.files if not file.after}
    assert left["one.py"] == left["two.py"] == ["fit() also requires saving.py, which other programs use too"]


def test_a_program_of_more_text_than_is_followed_is_refused(
    tmp_path: Path, package: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversion, "LARGEST_PROGRAM", 1000)
    report = convert(tmp_path, {**package, "main.py": SCRIPT})
    (finding,) = [finding for _, finding in report.findings(Severity.BLOCKED)]
    assert finding.message.endswith(" files around this loop that import each other have 1 kB, the limit is 1 kB")


def test_a_loop_among_many_files_that_import_each_other_is_converted(tmp_path: Path, package: dict[str, str]) -> None:
    users = {f"kit/use{n}.py": f"from kit.trainer import fit\n\n\ndef use{n}():\n    return fit\n" for n in range(160)}
    report = convert(tmp_path, {**package, **users, "main.py": SCRIPT})
    assert {f.path.name for f in report.files if f.status is FileStatus.CHANGED} == {"main.py", "trainer.py"}


def test_a_module_whose_names_nobody_uses_is_not_read(tmp_path: Path, package: dict[str, str]) -> None:
    package["kit/__init__.py"] += "from .layer0 import *\nfrom .unused import *\n"
    files = {**package, "kit/unused.py": "def unused():\n    return 1\n", "main.py": SCRIPT}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    names = [str(tmp_path / name) for name in files]
    (found,), _ = program.find_programs(
        tmp_path, names, names, lambda path: path.read_bytes() if path.is_file() else None
    )
    assert {"nets.py", "__init__.py"} < {path.name for path in found.paths}
    assert "unused.py" not in {path.name for path in found.paths}


def test_torch_is_never_a_folder_of_the_project(tmp_path: Path) -> None:
    files = {"kit/torch/__init__.py": "", "kit/task/run.py": HEADER + LOOP}
    (result,) = convert(tmp_path, files).files
    assert result.status is FileStatus.CHANGED


def test_a_statement_is_read_again_only_when_what_it_reads_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 0
    assigned = Statements._assigned

    def counted(*args: Any) -> Any:
        nonlocal count
        count += 1
        return assigned(*args)

    monkeypatch.setattr(Statements, "_assigned", counted)
    chain = "".join(f"net{i + 1} = net{i}\n" for i in reversed(range(10)))  # one more is known in each round
    beside = "".join(f"other{i} = len([{i}])\n" for i in range(100))
    report = run(tmp_path, train=HEADER + chain + "net0 = Net()\n" + beside + LOOP.replace("Net()", "net10"))
    assert report.files[0].status is FileStatus.CHANGED
    assert count < 3 * 115  # for one copy of values and for several


def test_walks_through_trees_and_lists_end_soon(tmp_path: Path) -> None:
    walk = """
        def walk(node, other):
            while node is not other:
                node = node.left
                other = node.right
                node = other.up[0]
                other = node["next"].left
                node, other = other.value, node.key
            return node


        walk(model, torch.fx)
        walk(torch.fx.Graph(), model)
    """
    report = run(tmp_path, train=HEADER + LOOP + textwrap.dedent(walk))
    assert not list(report.findings(Severity.ERROR))


def test_one_file_of_a_large_folder_is_read_with_what_it_is_connected_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {f"other{i}/train.py": HEADER + LOOP for i in range(20)} | {f"other{i}/kit.py": NETS for i in range(20)}
    files |= {"nets.py": NETS, "trainer.py": TRAINER, "kit.py": "from nets import Net\nfrom trainer import fit\n"}
    files |= {"script.py": SCRIPT.replace("from kit.data import samples\n", "samples = list\n")}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    read = []

    def noted(data: bytes, tree: ast.Module) -> ModuleFacts:
        read.append(data)
        return module_facts(data, tree=tree)

    monkeypatch.setattr(program, "module_facts", noted)
    report = migrate(discover([str(tmp_path / "script.py"), str(tmp_path / "trainer.py")]), PLAIN)
    assert [f.path.name for f in report.files if f.status is FileStatus.CHANGED] == ["script.py", "trainer.py"], report
    assert len(read) == 4


def test_a_file_with_a_loop_that_another_script_saves_with_is_read_to_the_end(tmp_path: Path) -> None:
    save = "\n\ndef save(model, path):\n    torch.save(model.state_dict(), path)\n\n\nsave(model, 'a.pt')\n"
    script = "from second import save\n" + HEADER + LOOP + "save(model, 'b.pt')\n"
    report = run(tmp_path, first=script, second=HEADER + LOOP + save)
    after = {file.path.stem: (file.after or b"").decode() for file in report.files}
    assert ["engine.step()" in text for text in (after["first"], after["second"])] == [True, True]
    assert after["second"].count("if is_main_rank():\n        torch.save(") == 1


FOLDER = """\
import os
import time


def folder():
    if not os.path.exists("runs"):
        os.makedirs("runs")
    name = time.strftime("%H%M%S")
    return os.path.join("runs", name)
"""


def test_what_several_programs_use_stays_where_ranks_need_little_of_it(
    tmp_path: Path, package: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "MOST_FILES", 5)
    script = OWN_LOOP.replace("kit.saving import save", "kit.saving import folder") + "    path = folder()\n"
    report = convert(tmp_path, {**package, "kit/saving.py": FOLDER, "one.py": script, "two.py": script})
    after = {file.path.name: file.after for file in report.files if file.after is not None}
    assert set(after) == {"one.py", "two.py"} and all(b"engine.step()" in text for text in after.values())
    (left,) = [file for file in report.files if file.path.name == "saving.py"]
    beginning = "unchanged, as other loops use it, although several ranks need a change: "
    assert [(finding.line, finding.message) for finding in left.findings] == [
        (7, f"{beginning}another rank may have made this folder by then"),
        (8, f"{beginning}all ranks use the name that rank 0 makes from the time"),
    ]


@pytest.mark.parametrize("is_found", [True, False])
def test_ranks_start_behind_a_file_that_several_programs_use(
    tmp_path: Path, package: dict[str, str], monkeypatch: pytest.MonkeyPatch, is_found: bool
) -> None:
    monkeypatch.setattr(program, "MOST_FILES", 5)
    base = "import torch\n\n\nclass Base:\n    def run(self):\n        torch.rand(1)\n        self.fit()\n"
    own = textwrap.indent(LOOP.replace("data,", "samples(),"), " " * 8)
    script = f"""{HEADER}
from kit.base import Base
from kit.data import samples


class Own(Base):
    def fit(self):
{own}

if __name__ == "__main__":
    {"Own().run()" if is_found else "torch.launch(Own)"}
"""
    report = convert(tmp_path, {**package, "kit/base.py": base, "one.py": script, "two.py": script})
    after = {file.path.name: (file.after or b"").decode() for file in report.files if file.after is not None}
    assert set(after) == {"one.py", "two.py"}
    message = "the ranks start behind what base.py does first, which other loops use as it is"
    found = [file.path.name for file, f in report.findings(Severity.REVIEW) if f.message == message]
    assert found == ([] if is_found else ["one.py", "two.py"])
    beginning = 'if __name__ == "__main__":\n' if is_found else "    def fit(self):\n    "
    assert f"{beginning}    init_distributed()\n" in after["one.py"]
    assert after["one.py"].count("init_distributed()") == 1
