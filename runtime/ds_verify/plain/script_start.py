"""Start of a script: its working directory, its arguments, and where its imports are found."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from ds_verify.plain.process_group import WORLD_SIZE
from ds_verify.recorder import RANK


@contextlib.contextmanager
def started_script(home: Path, job: dict[str, Any]) -> Iterator[None]:
    """Give the script the working directory, arguments and path that it has when it is started."""
    script = home / job["target"]
    words, path = list(job["args"]), [str(home / folder) for folder in job["path"]]
    if WORLD_SIZE > 1 and takes_local_rank(script):
        words = [f"--local_rank={RANK}", *words]
    # Last, what a start by `python -m` or with PYTHONPATH=. finds.
    beside = [str(folder) for folder in dict.fromkeys((_around_package(script.parent), home))]
    os.chdir(home)
    importlib.invalidate_caches()
    with (
        mock.patch.object(sys, "argv", [job["target"], *words]),
        mock.patch.object(sys, "path", [str(folder_of_imports(script)), *path, *sys.path[1:], *beside]),
    ):
        yield


def module_of(script: Path) -> str:
    """Return the module by which ``python -m`` starts a script; empty for one that is started by its path.

    Imports relative to its package work only in a script that is started as a module.
    """
    if not re.search(rb"^\s*from\s+\.", script.read_bytes(), re.MULTILINE):
        return ""
    return ".".join(script.relative_to(folder_of_imports(script)).with_suffix("").parts)


def folder_of_imports(script: Path) -> Path:
    """Return the folder that a script's imports begin in: its own, or the one around its package."""
    folder = script.parent
    if re.search(rb"^\s*from\s+\.", script.read_bytes(), re.MULTILINE):
        folder = _around_package(folder if (folder / "__init__.py").exists() else folder.parent)
    return folder


def _around_package(folder: Path) -> Path:
    while (folder / "__init__.py").exists():
        folder = folder.parent
    return folder


def takes_local_rank(script: Path) -> bool:
    """Return whether a script defines the argument by which older launchers pass the rank."""
    return re.search(rb"""add_argument\(\s*["']--local_rank["']""", script.read_bytes()) is not None
