"""Which methods of a trial run before its engine is made, and which when it is there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import libcst as cst

from ds_migrate.project.module_index import TRIAL_METHODS
from ds_migrate.syntax.nodes import dotted
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.model import Trial

_Code: TypeAlias = tuple[SourceFile, cst.CSTNode]


def raw_only(trial: Trial) -> set[str]:
    """Methods that only the code above the engine calls, directly or through others: they meet the raw model."""
    early, late = _phases(trial)
    return early - late


def raw_and_engine(trial: Trial) -> set[str]:
    """Methods that run before the engine is made, and again when it is there."""
    early, late = _phases(trial)
    return early & late


def _phases(trial: Trial) -> tuple[set[str], set[str]]:
    """What runs before, and what later: methods that nothing above the engine reaches, the trial's hooks, and what
    other classes call."""
    if trial.place is None:
        return set(), set()
    file, body = trial.place.file, list(trial.place.function.body.body)
    engine = body.index(trial.place.statement) + 1
    early = _reached(trial, [(file, statement) for statement in body[:engine]])
    if not early:
        return early, set()
    later: list[_Code] = [(file, statement) for statement in body[engine:]]
    own = {node for part in trial.parts for node in part.file.nodes(cst.Attribute, below=part.node)}
    named = {n.attr.value for f in trial.files for n in f.nodes(cst.Attribute) if n not in own} & early
    for part, function in trial.methods():
        name = function.name.value
        if name != "__init__" and (name not in early or name in TRIAL_METHODS or name in named):
            later.append((part.file, function))
            named.add(name)
    return early, named | _reached(trial, later)


def _reached(trial: Trial, roots: Iterable[_Code]) -> set[str]:
    """The methods that the code names on ``self``, and those that these name."""
    methods: dict[str, list[_Code]] = {}
    for part, function in trial.methods():
        methods.setdefault(function.name.value, []).append((part.file, function))
    found: set[str] = set()
    queue = list(roots)
    while queue:
        file, below = queue.pop()
        for node in file.nodes(cst.Attribute, below=below):
            name = node.attr.value
            if name in methods and name not in found and dotted(node) == f"self.{name}":
                found.add(name)
                queue += methods[name]
    return found
