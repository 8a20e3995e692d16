"""docs/architecture.md: every path on the page exists, and every package is named."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
PATH = r"`((?:codemod|runtime|tests|docs|fixtures|benchmarks)/[\w./-]*)`"


def tree() -> Iterator[str]:
    """Yield the paths of the ``text`` blocks, in which indentation is a level."""
    for block in re.findall(r"^```text\n(.*?)^```", PAGE, re.M | re.S):
        above: list[tuple[int, str]] = []
        for line in block.splitlines():
            indent, name = len(line) - len(line.lstrip()), line.split()[0]
            while above and above[-1][0] >= indent:
                above.pop()
            path = "".join(parent for _, parent in above) + name
            above.append((indent, name))
            yield path


def rows() -> list[tuple[str, list[str], list[str]]]:
    """Return the rows of the tables: the first cell, the paths in the others, and the Python names beside them."""
    found = []
    for first, others in re.findall(r"^\| (.*?) \| (.*) \|$", PAGE, re.M):
        paths = re.findall(PATH, others)
        if paths:
            words = re.findall(r"`([^`]+)`", others)
            found.append((first, paths, [word for word in words if re.fullmatch(r"[A-Za-z_]+", word)]))
    return found


@pytest.mark.parametrize("path", [*tree(), *re.findall(PATH, PAGE)])
def test_a_path_on_the_page_exists(path: str) -> None:
    assert (ROOT / path).exists()
    assert (ROOT / path).is_dir() == path.endswith("/")


def test_every_package_is_in_a_tree() -> None:
    packages = {
        f"{module.parent.relative_to(ROOT).as_posix()}/"
        for folder in ("codemod", "runtime")
        for module in (ROOT / folder).rglob("__init__.py")
        if "shim" not in module.parts
    }
    assert packages <= set(tree())


@pytest.mark.parametrize(("paths", "names"), [row[1:] for row in rows()], ids=[row[0] for row in rows()])
def test_a_row_names_what_its_files_hold(paths: list[str], names: list[str]) -> None:
    text = "\n".join(f.read_text(encoding="utf-8") for p in paths for f in files_of(ROOT / p))
    assert [name for name in names if not re.search(rf"\b{re.escape(name)}\b", text)] == []


def files_of(path: Path) -> list[Path]:
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]
