"""The private names of the context in 0.12.11 and 0.12.12: ``context._Model(m)`` is ``context.wrap_model(m)``."""

from __future__ import annotations

import ast

from ds_migrate.upgrade.module_edits import ModuleEdits
from ds_migrate.upgrade.result import RENAMED


def upgrade_names(edits: ModuleEdits, contexts: frozenset[str]) -> None:
    """Rename the calls of a context.

    ``contexts``: what the trials call their context, ``context`` and ``self.context``.
    """
    first = None
    for node in ast.walk(edits.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in RENAMED:
            owner = node.func.value
            if ast.unparse(owner).rpartition(".")[2] in contexts:
                end = edits.end(node.func)
                edits.replace(end - len(node.func.attr), end, RENAMED[node.func.attr])
                first = first or node
    if first is not None:
        edits.notice(first, "the context's private names of 0.12.11 are its public ones")
