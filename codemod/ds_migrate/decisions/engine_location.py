"""The location of the engines: a statement of the function that makes them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import libcst as cst

from ds_migrate.syntax.nodes import dotted, last_name, targets, walk
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.model import Trial


@dataclass(frozen=True)
class EngineLocation:
    """The function and, directly in its body, the statement after which the engines are made.

    ``has_late_schedule``: a learning rate schedule is made after the engine, over its optimizer.
    """

    file: SourceFile
    function: cst.FunctionDef
    statement: cst.BaseStatement
    has_late_schedule: bool = False

    @property
    def statements_above(self) -> list[cst.CSTNode]:
        """The statements of the function that run before the engines are made."""
        body = list(self.function.body.body)
        return list(body[: body.index(self.statement) + 1])

    @property
    def statements_below(self) -> list[cst.CSTNode]:
        """The statements of the function that run when the engines are there."""
        return list(self.function.body.body[len(self.statements_above) :])


def after_names(location: EngineLocation, names: Collection[str]) -> EngineLocation:
    """Return the same location, or a later one where every one of the names has its value."""
    body = list(location.function.body.body)
    last = body.index(location.statement)
    for index in range(last + 1, len(body)):
        for node in walk(body[index]):
            if any(dotted(t) in names for t in targets(node)):
                last = index
    statement = body[last]
    assert isinstance(statement, cst.BaseStatement)
    return replace(location, statement=statement)


def is_after_engine(
    trial: Trial, location: EngineLocation, file: SourceFile, function: cst.FunctionDef, node: cst.CSTNode
) -> bool:
    """Return whether a statement of an ``__init__`` runs when the engine is there: below its location, in a class built
    on the one that makes it, once ``super().__init__`` has run, or in a class that nothing makes before the engine."""
    top = file.statement_in(node, function)
    if top is None:
        return False
    if function is location.function:
        return top in location.statements_below
    inits = [init for _, init in trial.methods("__init__")]
    if all(function is not init for init in inits):
        owner = file.class_around(function)
        above = (node for statement in location.statements_above for node in walk(statement))
        made = {last_name(call.func) for call in above if isinstance(call, cst.Call)}
        return owner is not None and owner.name.value not in made
    if location.function not in inits or inits.index(function) > inits.index(location.function):
        return False
    calls = [n for n in walk(function) if isinstance(n, cst.Call) and _is_init_of_base(n)]
    return bool(calls) and file.position(calls[0]) < file.position(node)


def _is_init_of_base(call: cst.Call) -> bool:
    """``super().__init__(...)`` or ``Base.__init__(self, ...)``."""
    return isinstance(call.func, cst.Attribute) and call.func.attr.value == "__init__"
