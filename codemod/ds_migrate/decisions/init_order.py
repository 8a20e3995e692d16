"""The methods of a trial that run before its engine is made, and those that run when it is there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import libcst as cst

from ds_migrate.decisions.engine_location import EngineLocation
from ds_migrate.project.module_index import TRIAL_METHODS
from ds_migrate.syntax.nodes import dotted
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.model import Trial

_Code: TypeAlias = tuple[SourceFile, cst.CSTNode]


def raw_only(trial: Trial, location: EngineLocation) -> set[str]:
    """Return methods that only the code above the engine calls, directly or through others: they meet the raw model."""
    early, late = _phases(trial, location)
    return early - late


def raw_and_engine(trial: Trial, location: EngineLocation) -> set[str]:
    """Return methods that run before the engine is made, and again when it is there."""
    early, late = _phases(trial, location)
    return early & late


def _phases(trial: Trial, location: EngineLocation) -> tuple[set[str], set[str]]:
    """Return the methods that run before, and those that run later: what nothing above the engine reaches, the trial's
    hooks, and what other classes call."""
    early = _reached(trial, [(location.file, statement) for statement in location.statements_above])
    if not early:
        return early, set()
    later: list[_Code] = [(location.file, statement) for statement in location.statements_below]
    own = {node for part in trial.parts for node in part.file.nodes(cst.Attribute, below=part.node)}
    named = {n.attr.value for f in trial.files for n in f.nodes(cst.Attribute) if n not in own} & early
    for part, function in trial.methods():
        name = function.name.value
        if name != "__init__" and (name not in early or name in TRIAL_METHODS or name in named):
            later.append((part.file, function))
            named.add(name)
    return early, named | _reached(trial, later)


def _reached(trial: Trial, roots: Iterable[_Code]) -> set[str]:
    """Return the methods that the code names on ``self``, and those that these name."""
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
