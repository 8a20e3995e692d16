"""Python modules of other people as syntax trees of the standard library."""

from __future__ import annotations

import ast
import warnings


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
        return parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
