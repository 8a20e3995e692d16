"""Loops of one program that change the same files: each is converted, or leaves nothing behind."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from ds_migrate.files.discovery import discover
from ds_migrate.findings import Report, Severity
from ds_migrate.pipeline import migrate
from ds_migrate.plain.parts import editing
from ds_migrate.rules.codes import Code
from fixture_folders import FIXTURES
from plain_loops import HEADER, PLAIN, convert, run
from plain_loops import LOOP as LOOP_ALONE

DATA = """
import torch
from torch.utils.data import DataLoader, TensorDataset


def loader():
    return DataLoader(TensorDataset(torch.zeros(8, 4), torch.zeros(8, 1)), batch_size=4)
"""
LOOP = """
import torch
import torch.nn as nn

from data import loader


def fit_{name}():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader():
        optimizer.zero_grad()
        loss = (model(x) - y).abs().mean()
        loss.backward()
        optimizer.step()
    return model
"""
RUN = """
from {module} import fit_{module}

if __name__ == "__main__":
    fit_{module}()
"""
BASE = """
import torch
import torch.nn as nn


class Base:
    def __init__(self):
        self.net = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def update(self, x):
        self.optimizer.zero_grad()
        loss = self.net(x).mean()
        loss.backward()
        self.optimizer.step()
"""
CURIOUS = """
import torch
import torch.nn as nn

from base import Base


class Curious(Base):
    def __init__(self):
        super().__init__()
        self.predictor = nn.Linear(4, 1)
        self.second = torch.optim.Adam(self.predictor.parameters(), lr=0.1)

    def explore(self, x):
        self.second.zero_grad()
        loss = self.predictor(x).mean()
        loss.backward()
        self.second.step()


if __name__ == "__main__":
    agent = Curious()
    agent.update(torch.ones(2, 4))
    agent.explore(torch.ones(2, 4))
"""


def texts(report: Report) -> dict[str, str]:
    return {file.path.stem: (file.after or b"").decode() for file in report.files if file.to_write}


def refused(report: Report) -> list[tuple[str, str, str]]:
    return [(file.path.stem, f.code, f.message) for file, f in report.findings(Severity.BLOCKED)]


def test_a_loop_that_is_refused_leaves_no_edit_in_a_shared_file(tmp_path: Path) -> None:
    files = {
        "data": DATA, "first": LOOP.format(name="first"), "run_first": RUN.format(module="first"),
        "second": LOOP.format(name="second"), "run_second": RUN.format(module="second"),
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    named = [str(tmp_path / f"{name}.py") for name in files if name != "run_first"]
    report = migrate(discover(named), PLAIN)
    assert refused(report) == [
        ("first", Code.FILE_NOT_NAMED, "fit_first() also requires run_first.py, which is not among the given paths")
    ]
    after = texts(report)
    assert set(after) == {"data", "second", "run_second"}
    assert after["data"].count("shard(DataLoader(") == 1 and "engine.step()" in after["second"]


def test_loops_that_change_other_lines_of_a_file_are_converted_together(tmp_path: Path) -> None:
    report = run(tmp_path, base=BASE, curious=CURIOUS)
    assert refused(report) == []
    after = texts(report)
    assert "self.engine.step()" in after["base"] and "self.engine" not in after["curious"]
    assert after["curious"].count("self.ds_engine.step()") == 1
    assert after["curious"].count("init_distributed()") == 1
    (together,) = report.conversions()
    assert {file.path.stem for file in together} == {"base", "curious"}


def test_loops_that_need_the_same_change_of_a_helper_share_it(tmp_path: Path) -> None:
    files = {"data": DATA, "first": LOOP.format(name="first"), "second": LOOP.format(name="second")}
    report = run(tmp_path, **files)
    assert refused(report) == []
    after = texts(report)
    assert after["data"].count("shard(") == 1 and after["data"].count("import shard") == 1
    assert "engine.step()" in after["first"] and "engine.step()" in after["second"]
    (together,) = report.conversions()
    assert {file.path.stem for file in together} == set(files)


def test_a_loop_stays_where_it_needs_the_file_of_another_one_that_stays(tmp_path: Path) -> None:
    other = """
        from base import Base
        from data import loader


        class Other(Base):
            def __init__(self):
                super().__init__()
                self.parameters = torch.nn.Linear(4, 1).parameters
                self.closing = torch.optim.SGD(self.parameters(), lr=0.1)

            def close(self):
                for x, y in loader():
                    (x - y).mean().backward()
                    self.closing.step(1.0)


        if __name__ == "__main__":
            Other().update(torch.ones(2, 4))
        """
    text = "import torch\n" + textwrap.dedent(other)
    report = run(tmp_path, base=BASE, other=text, data=DATA)
    found = refused(report)
    message = "update() also requires other.py, where another loop stays as it is"
    assert ("base", Code.FILE_NOT_NAMED, message) in found
    assert ("other", Code.PLAIN_CLOSURE, "step() is given 1.0, which engine.step() does not take") in found
    assert texts(report) == {}


def test_an_engine_gets_an_attribute_that_its_owner_does_not_have(tmp_path: Path) -> None:
    text = """
        class Trainer:
            def __init__(self, model):
                self.model = model
                self.engine = "physics"
                self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

            def fit(self, loader):
                for x, y in loader:
                    OWN_STEP
                return self.engine


        Trainer(Net()).fit(DataLoader(data, batch_size=4))
        """
    after = convert(tmp_path, HEADER + textwrap.dedent(text))
    assert "self.ds_engine.step()" in after and "return self.engine\n" in after


def test_a_folder_that_is_a_package_itself_is_known_by_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "agents"
    folder.mkdir()
    curious = CURIOUS.replace("from base", "from agents.base")
    report = run(folder, __init__="", base=BASE, curious=curious)
    assert refused(report) == [] and "self.ds_engine.step()" in texts(report)["curious"]


CLOSED = LOOP.replace("optimizer.step()", "optimizer.step(1.0)")
OWN_DATA = LOOP.replace("from data import loader\n", "from data import items\n").replace(" in loader()", " in items")
BESIDE = (
    "not converted, and may run beside this loop: second.py:15; on several ranks, what is trained there is not averaged"
)


def reviews(report: Report) -> list[tuple[str, str]]:
    return [
        (file.path.stem, f.message)
        for file, f in report.findings(Severity.REVIEW)
        if f.message.startswith("not converted")
    ]


def test_a_loop_that_stays_beside_a_converted_one_is_reported(tmp_path: Path) -> None:
    both = "from first import fit_first\nfrom second import fit_second\n\nfit_first()\nfit_second()\n"
    data = DATA + "\n\nitems = [(torch.zeros(2, 4), torch.zeros(2, 1))]\n"
    files = {"first": OWN_DATA.format(name="first"), "second": CLOSED.replace(" in loader()", " in [(0, 0)]")}
    report = run(tmp_path, data=data, both=both, first=files["first"], second=files["second"].format(name="second"))
    assert reviews(report) == [("first", BESIDE)]
    apart = {"run_first": RUN.format(module="first"), "run_second": RUN.format(module="second"), "both": ""}
    assert reviews(run(tmp_path, **apart)) == []


def test_a_loop_that_stays_is_reported_where_it_trains_on_a_share(tmp_path: Path) -> None:
    files = {"data": DATA, "first": LOOP.format(name="first"), "second": CLOSED.format(name="second")}
    report = run(tmp_path, **files)
    assert [code for _, code, _ in refused(report)] == [Code.PLAIN_CLOSURE]
    assert reviews(report) == [("first", BESIDE)]


NAMED = """
import os
import time


def folder():
    if not os.path.exists("runs"):
        os.makedirs("runs")
    name = time.strftime("%H%M%S")
    return os.path.join("runs", name)
"""


def test_programs_that_change_a_helper_otherwise_build_on_each_other(tmp_path: Path) -> None:
    alone = f"from names import folder\n{HEADER}path = folder()\n{LOOP_ALONE}torch.save(model, path)\n"
    ranks = alone.replace("path =", 'torch.distributed.init_process_group("gloo")\npath =')
    for first, second in ((alone, ranks), (ranks, alone)):
        report = run(tmp_path, names=NAMED, first=first, second=second)
        names = texts(report)["names"]
        assert 'rank_0_text(time.strftime("%H%M%S"))' in names and names.count("exist_ok=True") == 1
        (file,) = [file for file in report.files if file.path.stem == "names"]
        assert sorted(finding.line for finding in file.findings) == [8, 9]


def test_a_report_is_the_same_whatever_the_order_of_sets(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "plain_trainer" / "before", tmp_path / "tree" / "trainer")
    for name in "abcde":
        (tmp_path / "tree" / f"{name}.py").write_text(
            HEADER + "from names import folder\n" + LOOP_ALONE + "print(folder())\n"
        )
    (tmp_path / "tree" / "names.py").write_text(NAMED)
    command = [sys.executable, "-m", "ds_migrate", "--plain", "tree", "--format", "json"]
    runs = [
        subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "PYTHONHASHSEED": seed}, stdout=subprocess.PIPE)
        for seed in ("1", "2")
    ]
    first, second = (run.communicate(timeout=120)[0] for run in runs)
    assert first == second and first.count(b'"status": "changed"') > 5


def test_a_helper_that_imports_the_runtime_already_keeps_one_import(tmp_path: Path) -> None:
    helper = "import torch\nfrom trial_runtime.plain import (\n    is_main_rank as is_rank_0,\n)\n\n\n"
    helper += "def make(data):\n    return torch.utils.data.DataLoader(data, batch_size=4)\n\n\n"
    helper += "def save(model):\n    if is_rank_0():\n        torch.save(model.state_dict(), 'a')\n"
    train = LOOP_ALONE.replace("loader = DataLoader(data, batch_size=4, shuffle=True)", "loader = make(data)")
    report = run(tmp_path, helper=helper, train=f"from helper import make, save\n{HEADER}{train}save(model)\n")
    (after,) = [file.after for file in report.files if file.path.stem == "helper"]
    assert after is not None and b"return shard(" in after and b"if is_rank_0():\n        torch.save" in after
    assert after.count(b"trial_runtime") == 1
    assert b"from trial_runtime.plain import is_main_rank as is_rank_0, shard\n" in after


def test_a_helper_that_this_python_cannot_parse_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(data: bytes) -> ast.Module | None:
        return None if b"def note" in data else ast.parse(data)

    monkeypatch.setattr(editing, "parse_if_valid", parse)
    helper = "def note(text):\n    print(text)\n"
    report = run(tmp_path, helper=helper, train=f"from helper import note\n{HEADER}{LOOP_ALONE}note('done')\n")
    assert {file.path.stem for file in report.files if file.after is not None} == {"train"}
    step = "def note(optimizer):\n    optimizer.step()\n"
    loop = LOOP_ALONE.replace("optimizer.step()", "note(optimizer)")
    report = run(tmp_path, helper=step, train=f"from helper import note\n{HEADER}{loop}")
    messages = {finding.message for _, finding in report.findings(Severity.BLOCKED)}
    assert any("helper.py, which the Python that runs ds-migrate cannot parse" in message for message in messages)
    assert not any(file.to_write for file in report.files)


FACTORY = """
import torch


def make_optimizer(params, name="adam"):
    if name == "sgd":
        return torch.optim.SGD(params, lr=0.1)
    return torch.optim.Adam(params)
"""
MADE_THERE = f"from factory import make_optimizer\n{HEADER}{LOOP_ALONE}".replace(
    "torch.optim.SGD(model.parameters(), lr=0.1)", "make_optimizer(model.parameters())"
)


def test_scripts_of_which_one_stays_may_share_a_factory_of_optimizers(tmp_path: Path) -> None:
    stays = MADE_THERE.replace("    loss.backward()\n    optimizer.step()", "    optimizer.step(lambda: loss)")
    report = run(tmp_path, factory=FACTORY, one=MADE_THERE, two=MADE_THERE, other=stays)
    assert {name for name, _, _ in refused(report)} == {"other"}
    assert set(texts(report)) == {"one", "two"}


def test_a_notebook_as_a_script_that_does_not_compile_is_left_out(tmp_path: Path) -> None:
    trains = "class Model:\n    def fit(self):\n" + textwrap.indent(LOOP_ALONE, "        ")
    notebook = "import train\n\nfrom __future__ import annotations\n\nmodel = train.Model()\nprint(model.fit())\n"
    report = run(tmp_path, train=HEADER + trains, notebook=notebook)
    assert [file.path.name for file in report.files if file.to_write] == ["train.py"]
    assert [file.path.name for file in report.files if file.findings] == ["train.py"]
