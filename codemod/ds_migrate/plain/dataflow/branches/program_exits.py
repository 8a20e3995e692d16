"""Calls that end a program."""

from __future__ import annotations

import libcst as cst

from ds_migrate.syntax.nodes import dotted

_EXITS = frozenset({"sys.exit", "exit", "quit", "os._exit", "_exit", "SystemExit"})


def is_exit(node: cst.CSTNode) -> bool:
    """Return whether a node is a call that ends the program, or makes the exception that does."""
    return isinstance(node, cst.Call) and dotted(node.func) in _EXITS
