"""Files of which each rank has another one: temporary ones, and those whose names have the number of the rank."""

from __future__ import annotations

from pathlib import Path

import pytest
from plain_loops import HEADER, LOOP, convert

IMPORTS = """\
import json
import os
import shutil
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path
from matplotlib import pyplot as plt
"""


def _after(tmp_path: Path, text: str) -> str:
    converted = convert(tmp_path, IMPORTS + HEADER + LOOP + text)
    return converted.rpartition("engine.step()\n")[2]


@pytest.mark.parametrize(
    "text",
    [
        "tmp = tempfile.NamedTemporaryFile()\ntorch.save(model.state_dict(), tmp.name)\n",
        "with tempfile.NamedTemporaryFile(delete=False) as f:\n    torch.save(1, f)\nos.remove(f.name)\n",
        "fd, name = tempfile.mkstemp()\ntorch.save(model.state_dict(), name)\nPath(name).unlink()\n",
        "fd, name = tempfile.mkstemp()\nwith open(name, 'w') as f:\n    json.dump([1], f)\nos.unlink(name)\n",
        "def save(to):\n    torch.save(model.state_dict(), to)\n\n\nsave(tempfile.NamedTemporaryFile().name)\n",
        "tmp = tempfile.TemporaryDirectory()\ntorch.save(model.state_dict(), os.path.join(tmp.name, 'best.pt'))\n",
        "tmp = tempfile.TemporaryDirectory()\npath = f'{tmp.name}/best.pt'\ntorch.save(model.state_dict(), path)\n",
        "t = tempfile.TemporaryDirectory()\np = Path(t.name).resolve() / 'a'\np.with_suffix('.json').write_text('1')\n",
        "to = ExitStack().enter_context(tempfile.TemporaryDirectory())\ntorch.save(1, os.path.join(to, 'best.pt'))\n",
        "t = Path(tempfile.TemporaryDirectory().name)\na, b = t / 'a', t / 'b'\ntorch.save(1, a)\nb.write_text('1')\n",
        "root = Path(tempfile.TemporaryDirectory().name)\n(root / 'a.json').write_text('1')\nshutil.rmtree(root)\n",
    ],
)
def test_each_rank_writes_and_removes_the_temporary_file_that_it_has(text: str, tmp_path: Path) -> None:
    assert _after(tmp_path, text) == text


WORKSPACE = """\
class Servers:
    def __init__(self):
        self.tmp = tempfile.TemporaryDirectory()
        self.workspaces = make_all(Path(self.tmp.name))


def make_all(root):
    return [make(root / f"w{i}") for i in range(2)]


def make(out):
    folder = Path(out)
    (folder / "document.json").write_text("1")
    return folder


servers = Servers()
"""


def test_each_rank_writes_in_the_temporary_folder_that_its_object_keeps(tmp_path: Path) -> None:
    assert _after(tmp_path, WORKSPACE) == WORKSPACE


@pytest.mark.parametrize("other", ['make("runs")', "make(input())"])
def test_rank_0_alone_writes_where_a_function_gets_other_folders_too(other: str, tmp_path: Path) -> None:
    assert "    if is_main_rank():\n        (folder / " in _after(tmp_path, WORKSPACE + other + "\n")


COMMAND = """\
with tempfile.TemporaryDirectory() as folder:
    with open(os.path.join(folder, "in.json"), "w") as f:
        json.dump([1], f)
    done = subprocess.run(["make_features", folder], capture_output=True)
    with open(f"{folder}/out.json") as f:
        features = json.load(f)
"""


def test_each_rank_keeps_the_temporary_folder_in_which_it_runs_a_command(tmp_path: Path) -> None:
    assert _after(tmp_path, COMMAND) == COMMAND


def test_rank_0_alone_moves_its_temporary_file_to_where_the_program_keeps_it(tmp_path: Path) -> None:
    text = "fd, name = tempfile.mkstemp()\ntorch.save(model.state_dict(), name)\nMOVE\n"
    moved = _after(tmp_path, text.replace("MOVE", "os.replace(name, 'model.pt')"))
    assert moved == text.replace("MOVE", "if is_main_rank():\n    os.replace(name, 'model.pt')")


def test_the_state_of_an_optimizer_in_a_temporary_file_is_whole_on_each_rank(tmp_path: Path) -> None:
    text = "tmp = tempfile.NamedTemporaryFile()\ntorch.save(optimizer.state_dict(), tmp.name)\n"
    assert _after(tmp_path, text) == text.replace("optimizer.state_dict()", "optimizer_state(optimizer)")
