"""Which methods of a trial run before its engine is made, and which when it is there."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from ds_migrate.detect import TRIAL_METHODS
from ds_migrate.syntax.tree import dotted, walk
from ds_migrate.trial.model import Trial


def raw_only(trial: Trial) -> set[str]:
    """Methods that only the code above the engine calls, directly or through others: they meet the raw model."""
    return _early(trial) - _late(trial)


def raw_and_engine(trial: Trial) -> set[str]:
    """Methods that run before the engine is made, and again when it is there."""
    return _early(trial) & _late(trial)


def _early(trial: Trial) -> set[str]:
    if trial.place is None:
        return set()
    body = list(trial.place.function.body.body)
    return _reached(trial, body[: body.index(trial.place.statement) + 1])


def _late(trial: Trial) -> set[str]:
    """What runs later: methods that nothing above the engine reaches, the trial's hooks, what other classes call."""
    if trial.place is None:
        return set()
    early = _early(trial)
    body = list(trial.place.function.body.body)
    roots: list[cst.CSTNode] = body[body.index(trial.place.statement) + 1 :]
    functions = {function: part for part, function in trial.methods()}
    inside = {node for function in functions for node in walk(function) if isinstance(node, cst.Attribute)}
    named = {
        node.attr.value for file in trial.files for node in file.nodes(cst.Attribute) if node not in inside
    } & early  # by a callback, for one
    for function in functions:
        name = function.name.value
        if name != "__init__" and (name not in early or name in TRIAL_METHODS or name in named):
            roots.append(function)
            named.add(name)
    return named | _reached(trial, roots)


def _reached(trial: Trial, roots: Iterable[cst.CSTNode]) -> set[str]:
    """The methods that the nodes name on ``self``, and those that these name."""
    methods: dict[str, list[cst.FunctionDef]] = {}
    for _, function in trial.methods():
        methods.setdefault(function.name.value, []).append(function)
    found: set[str] = set()
    queue = list(roots)
    while queue:
        for node in walk(queue.pop()):
            if isinstance(node, cst.Attribute) and dotted(node) == f"self.{node.attr.value}":
                name = node.attr.value
                if name in methods and name not in found:
                    found.add(name)
                    queue += methods[name]
    return found
