"""Arguments that are parameters of modules, by which an unknown call is one that makes an optimizer."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.scopes import Scopes
from ds_migrate.syntax.nodes import dotted, last_name, receiver, targets

_COLLECT = frozenset({"list", "tuple", "filter", "iter", "chain"})
_DEPTH = 3


def are_parameters(node: cst.BaseExpression, scopes: Scopes, depth: int = _DEPTH) -> bool:
    """Return whether an expression is a module's ``parameters()``, also in a list or behind a name."""
    if depth == 0:
        return False
    if isinstance(node, cst.Call):
        if receiver(node, "parameters") is not None:
            return True
        collects = last_name(node.func) in _COLLECT
        return collects and any(are_parameters(arg.value, scopes, depth - 1) for arg in node.args)
    if isinstance(node, cst.Name):
        values = [
            line.value for line in scopes.nodes(node, cst.Assign, cst.AnnAssign)
            if line.value is not None and any(dotted(target) == node.value for target in targets(line))
        ]  # fmt: skip
        return bool(values) and all(are_parameters(value, scopes, depth - 1) for value in values)
    return False
