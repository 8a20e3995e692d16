"""One hash seed for all ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import trial_runtime

SCRIPT = """
import importlib.util
spec = importlib.util.spec_from_file_location("hash_seed", {path!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print("start", flush=True)
module.share_hash_seed()
print(list(set("abcdefghijklmnop")))
"""
PATH = str(Path(trial_runtime.__file__).parent / "plain" / "_hash_seed.py")


def outputs(folder: Path, world_size: int, seed: str | None) -> list[list[str]]:
    """Return the lines that two processes print, by the command line of a launcher."""
    (folder / "script.py").write_text(SCRIPT.format(path=PATH))
    others = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    environment = {**others, "WORLD_SIZE": str(world_size), **({} if seed is None else {"PYTHONHASHSEED": seed})}
    command = [sys.executable, "-u", "-S", "script.py", "--local_rank=0"]
    started = [subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE) for _ in range(2)]
    return [process.communicate(timeout=60)[0].decode().splitlines() for process in started]


def test_ranks_have_one_order_of_sets(tmp_path: Path) -> None:
    (*starts, first), (*_, second) = outputs(tmp_path, 2, None)
    assert first == second
    assert starts == ["start", "start"]  # its command ran again


@pytest.mark.parametrize(("world_size", "seed"), [(1, None), (2, "5")])
def test_one_rank_and_a_seed_of_the_launcher_start_once(tmp_path: Path, world_size: int, seed: str | None) -> None:
    assert [len(lines) for lines in outputs(tmp_path, world_size, seed)] == [2, 2]
