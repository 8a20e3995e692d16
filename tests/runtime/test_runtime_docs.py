"""The pages of docs/runtime: every snippet runs, and every public name is there."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trial_runtime
from forked_python import forked_python
from ports import free_port
from trial_runtime import core, pytorch
from trial_runtime.pytorch import deepspeed as det_ds
from trial_runtime.pytorch import samplers

FOLDER = Path(__file__).parents[2] / "docs" / "runtime"
PAGES = sorted(FOLDER.glob("*.md"))


def snippets(page: Path) -> list[tuple[int, str]]:
    """The Python blocks of a page, with the line they begin at."""
    text = page.read_text(encoding="utf-8")
    blocks = re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, block.start(1)), block.group(1)) for block in blocks]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "page", [page for page in PAGES if snippets(page) and page.stem != "README"], ids=lambda page: page.stem
)
def test_snippets_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_first_trial(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "first_trial", raising=False)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    space: dict[str, Any] = {"__name__": "page", "PORT": free_port()}
    for line, snippet in snippets(page):
        exec(compile("\n" * line + snippet, str(page), "exec"), space)
    for name, test in list(space.items()):
        if name.startswith("test_"):
            (tmp_path / name).mkdir()
            test(**({"tmp_path": tmp_path / name} if inspect.signature(test).parameters else {}))


def write_first_trial(folder: Path) -> Path:
    """The trial of the first page, as the file that the others import."""
    file = folder / "first_trial.py"
    file.write_text(snippets(FOLDER / "README.md")[0][1], encoding="utf-8")
    return file


def public(holder: Any) -> list[str]:
    names = getattr(holder, "__all__", None) or [name for name in dir(holder) if callable(getattr(holder, name))]
    return [name for name in names if not name.startswith("_")]


HOLDERS: list[Any] = [
    trial_runtime, core, pytorch, samplers, det_ds,
    pytorch.PyTorchTrialContext, det_ds.DeepSpeedTrialContext, pytorch.PyTorchExperimentalContext,
    pytorch.PyTorchTrial, det_ds.DeepSpeedTrial, pytorch.PyTorchCallback, pytorch.LRScheduler.StepMode,
    pytorch.Reducer, core.DistributedContext,
]  # fmt: skip


@pytest.mark.parametrize("holder", HOLDERS, ids=lambda holder: holder.__name__)
def test_every_public_name_is_on_a_page(holder: Any) -> None:
    words = set(re.findall(r"\w+", " ".join(page.read_text(encoding="utf-8") for page in PAGES)))
    enum_members = [member.name for member in holder] if hasattr(holder, "__members__") else []
    assert [name for name in [*public(holder), *enum_members] if name not in words] == []


@pytest.mark.parametrize("holder", HOLDERS, ids=lambda holder: holder.__name__)
def test_every_public_name_has_a_docstring(holder: Any) -> None:
    values = [(name, getattr(holder, name)) for name in public(holder)]
    ours = [(n, v) for n, v in values if str(getattr(v, "__module__", "") or "").startswith("trial_runtime")]
    assert [name for name, value in ours if callable(value) and not inspect.getdoc(value)] == []


def test_the_first_trial_trains_on_its_own(tmp_path: Path) -> None:
    subprocess.run([forked_python(), str(write_first_trial(tmp_path))], check=True, cwd=tmp_path, timeout=200)
    assert (tmp_path / "run" / "metrics.jsonl").is_file()
