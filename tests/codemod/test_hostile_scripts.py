"""Plain scripts that nobody writes on purpose, read with ``--plain``: a finding, never a crash, a hang or silence."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ds_migrate.cli import main
from plain_loops import body, convert

LOOP = """\
import torch
from torch import nn

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader([(torch.ones(4), torch.ones(1))] * 8, batch_size=2)
for x, y in loader:
    loss = ((model(x) - y) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
UNREAD = {
    "a null byte": (LOOP + "\0", "source code string cannot contain null bytes"),
    "many brackets": (LOOP + "x = " + "(" * 500 + "1" + ")" * 500 + "\n", "too many nested parentheses"),
    "a long sum": (LOOP + "x = 1" + " + 1" * 5000 + "\n", "levels deep, and modules of up to 1,000 are read"),
    "a long chain": (LOOP + "x = model" + ".a" * 2000 + "\n", "levels deep, and modules of up to 1,000 are read"),
    "a large file": (LOOP + "x = 1\n" * 200_000, "has 1.2 MB, and modules of up to 1.0 MB are read"),
    "no Python": (LOOP + "print 'x'\n", "Missing parentheses"),
}


@pytest.mark.parametrize(("text", "reason"), UNREAD.values(), ids=UNREAD)
def test_a_script_that_cannot_be_read_is_reported(
    text: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(text)
    (tmp_path / "other.py").write_text(LOOP)
    before = time.process_time()
    code = main(["--plain", "--check", str(tmp_path)])
    shown = capsys.readouterr()
    assert code == 2
    assert "train.py:" in shown.out + shown.err and reason in shown.out + shown.err
    assert "1 to convert" in shown.out + shown.err or "other.py" in shown.out + shown.err
    assert time.process_time() - before < 30


def names(tree: Path) -> None:
    (tree / "a\x1b[31m\n.py").write_text(LOOP)
    (tree / "::error::x.py").write_text(LOOP)


def cycle(tree: Path) -> None:
    (tree / "a.py").write_text("from b import *\n" + LOOP)
    (tree / "b.py").write_text("from a import *\nfrom b import model\n")


def recursion(tree: Path) -> None:
    (tree / "a.py").write_text("def f(x):\n    return f(x)\n\n" + LOOP.replace("nn.Linear(4, 1)", "f(f)"))


def calls(tree: Path) -> None:
    functions = "".join(f"def f{i}(x):\n    return f{i + 1}(f{i + 1}(x))\n\n" for i in range(40))
    last = "def f40(x):\n    return model(x)\n\n"
    (tree / "a.py").write_text(functions + last + LOOP.replace("model(x)", "f0(x)"))


def links(tree: Path) -> None:
    (tree / "real").mkdir()
    (tree / "real/train.py").write_text(LOOP)
    (tree / "train.py").symlink_to("real/train.py")
    (tree / "loop").symlink_to(".")
    (tree / "dead.py").symlink_to("nowhere")
    (tree / "outside.py").symlink_to("/etc/passwd")


@pytest.mark.parametrize("make", [names, cycle, recursion, calls, links])
def test_a_strange_project_is_read_written_and_undone(
    make: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path)
    before = files(tmp_path)
    assert main(["--plain", str(tmp_path)]) == 0
    assert main(["--plain", "--write", str(tmp_path)]) in (0, 1)
    home = next(tmp_path.rglob(".ds-migrate"), tmp_path)
    assert main(["--undo", str(home.parent)]) in (0, 2)  # 2: nothing was written
    assert files(tmp_path) == before
    shown = capsys.readouterr()
    assert "\x1b" not in shown.out + shown.err


@pytest.mark.parametrize("link", [".ds-migrate", ".ds-migrate/.gitignore"])
def test_a_planted_link_is_not_written_through(link: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    victim, project = tmp_path / "victim", tmp_path / "project"
    victim.mkdir()
    (victim / "file").write_text("mine")
    project.mkdir()
    (project / "train.py").write_text(LOOP)
    (project / link).parent.mkdir(exist_ok=True)
    (project / link).symlink_to(victim / "file" if link.endswith("ignore") else victim)
    assert main(["--plain", "--write", str(project)]) == 2
    assert "link" in capsys.readouterr().err
    assert os.listdir(victim) == ["file"] and (victim / "file").read_text() == "mine"  # noqa: PTH208
    assert (project / "train.py").read_text() == LOOP


def files(tree: Path) -> dict[str, bytes]:
    found = (path for path in tree.rglob("*") if path.is_file() and ".ds-migrate" not in path.parts)
    return {str(path): path.read_bytes() for path in found}


def test_names_that_are_made_of_each_other_are_looked_at_once(tmp_path: Path) -> None:
    names = "abcdefghijklmnopqrst"
    updates = [f"        {name} = F.relu({' + '.join(names)})" for name in names]
    loop = [
        "    MAKE_MODEL", f"    {' = '.join(names)} = torch.zeros(4, 1)",
        "    for batch, target in DataLoader(data, batch_size=4):", "        a = out = model(batch)", *updates,
        "        loss = F.mse_loss(out, target)", "        optimizer.zero_grad()", "        loss.backward()",
        "        optimizer.step()", "        if len(a) > 3 and (a.numel() + b.sum()) > 2:", "            continue",
    ]  # fmt: skip
    before = time.process_time()
    assert "engine.step()" in convert(tmp_path, body("\n".join(loop)))
    assert time.process_time() - before < 15
