"""Training loops in notebooks, which no launcher starts on several ranks."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from ds_migrate.findings import FileResult, blocked_loop
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.parsing import parse_if_valid


def notebook_loop(path: Path, module: bytes) -> FileResult | None:
    """Return that a notebook has a training loop; None where it has none.

    Args:
        module: the code of its cells.
    """
    tree = parse_if_valid(module)
    calls = {} if tree is None else dict(reversed(list(_methods(tree))))  # the first of each name
    if not {"backward", "step"} <= calls.keys():
        return None
    return blocked_loop(
        Code.PLAIN_FRAMEWORK, path, calls["step"],
        "the loop is in a notebook, which runs in one process and which no launcher starts on several ranks",
        f"jupyter nbconvert --to script {path.name}, then convert the script",
    )  # fmt: skip


def _methods(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node.func.attr, node
