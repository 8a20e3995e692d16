"""Arguments that no call of a function gives anything: ``loss.backward(**kwargs)`` is ``loss.backward()``."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.syntax.nodes import is_literal, parameters, walk
from ds_migrate.syntax.source import SourceFile

_DEPTH = 4  # functions that hand them on


def is_empty(node: cst.BaseExpression, file: SourceFile, flow: Flow, depth: int = _DEPTH) -> bool:
    """Return whether an argument is None, or a parameter of its function to which no call gives anything."""
    if is_literal(node, "None"):
        return True
    function = file.function(node) if isinstance(node, cst.Name) else None
    if function is None or function.decorators or not depth or not isinstance(node, cst.Name):
        return False
    stars = [p for p in (function.params.star_arg, function.params.star_kwarg) if isinstance(p, cst.Param)]
    optional = [p for p in parameters(function) if p.default is not None and is_literal(p.default, "None")]
    param = next((p for p in (*optional, *stars) if p.name.value == node.value), None)
    names = (n for n in walk(function.body) if isinstance(n, cst.Name) and n.value == node.value and n is not node)
    if param is None or any(param in stars or isinstance(file.parent(n), cst.AssignTarget) for n in names):
        return False
    owners = {(id(function), node.value), id(param)}  # an item of a star is a variable of it
    calls = flow.callers.of(function)
    given = [
        (value, caller)
        for caller, call in calls
        for value in (
            *(arg.value for arg in call.args if arg.star),
            *(value for variable, value in flow.passed(call, caller) if owners & {variable, variable[0]}),
        )
    ]
    return bool(calls) and all(is_empty(value, caller, flow, depth - 1) for value, caller in given)
