"""Parameters that an optimizer may own beside those of the wrapped models."""

from __future__ import annotations

from collections.abc import Collection

import libcst as cst

from ds_migrate.syntax.nodes import dotted, last_name, walk
from ds_migrate.trial.model import Optimizer

_PARAMETER_METHODS = ("parameters", "named_parameters", "trainable_parameters")


def has_foreign_parameters(optimizer: Optimizer, names: Collection[str]) -> bool:
    """Return whether the optimizer may own parameters that are not the model's (or nothing shows that it owns those).

    ``names``: those of the model.
    """
    if not optimizer.models:
        return True
    loop_names = {
        t.value
        for e in optimizer.built_by
        for n in walk(e)
        if isinstance(n, cst.CompFor)
        for t in walk(n.target)
        if isinstance(t, cst.Name)
    }
    for expression in optimizer.built_by:
        for node in walk(expression):
            if isinstance(node, cst.Attribute) and node.attr.value in _PARAMETER_METHODS:
                owner = dotted(node.value)
                inside = owner is not None and any(owner == n or owner.startswith(n + ".") for n in names)
                if not inside and (owner or "").split(".")[0] not in loop_names:
                    return True
            if isinstance(node, cst.Attribute) and node.attr.value == "Parameter":
                return True
    return False


def has_bare_parameters(optimizer: Optimizer) -> bool:
    """Return whether the optimizer is given a parameter or tensor that lies in no module."""
    wrapped = {node for model in optimizer.models for wrap in model.wraps for node in walk(wrap.call)}
    for expression in optimizer.built_by:
        for node in walk(expression):
            if node in wrapped:
                continue
            if isinstance(node, cst.Call) and last_name(node.func) == "Parameter":
                return True
            if isinstance(node, cst.Arg) and node.keyword is not None and node.keyword.value == "requires_grad":
                return True
    return False
