"""Python modules of other people as syntax trees of the standard library."""

from __future__ import annotations

import ast
import warnings
from itertools import dropwhile


def parse(data: bytes) -> ast.Module:
    """Parse a module, without Python's warnings about invalid escapes in its strings.

    Raises:
        SyntaxError: where Python would.
        ValueError: it holds null bytes.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(data)


def parse_if_valid(data: bytes) -> ast.Module | None:
    """Parse a module; None where it is invalid, or nested too deeply for Python."""
    try:
        tree = parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return None if b"__future__" in data and _has_late_future(tree) else tree


def _has_late_future(tree: ast.Module) -> bool:
    """Return whether ``from __future__`` stands below other lines, as in a notebook's cell: only compiling finds it."""
    below = dropwhile(_is_future, tree.body[ast.get_docstring(tree) is not None :])
    return any(map(_is_future, below))


def _is_future(line: ast.stmt) -> bool:
    return isinstance(line, ast.ImportFrom) and line.module == "__future__"
