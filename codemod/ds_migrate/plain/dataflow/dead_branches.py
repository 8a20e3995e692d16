"""Branches that never run: those for an argument that no call of the function gives."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.calls import Callers
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.syntax.nodes import dotted, parameters, targets
from ds_migrate.syntax.source import SourceFile


def is_dead(node: cst.CSTNode, file: SourceFile, flow: Flow, callers: Callers) -> bool:
    """Return whether a node is in a branch for a parameter that is None in every call of its function."""
    inner = node
    for outer in file.ancestors(node):
        if isinstance(outer, cst.If) and inner is outer.body:
            name = _wanted(outer.test)
            if name is not None and _is_always_none(name, file, flow, callers):
                return True
        inner = outer
    return False


def _wanted(test: cst.BaseExpression) -> cst.Name | None:
    """Return the name that a test needs not to be None."""
    if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
        (target,) = test.comparisons
        if isinstance(target.operator, cst.IsNot) and dotted(target.comparator) == "None":
            test = test.left
    return test if isinstance(test, cst.Name) else None


def _is_always_none(name: cst.Name, file: SourceFile, flow: Flow, callers: Callers) -> bool:
    function = flow.scopes(file).owner(name.value, name)
    if not isinstance(function, cst.FunctionDef) or flow.values(name, file):
        return False
    parameter = next((p for p in parameters(function) if p.name.value == name.value), None)
    if parameter is None or dotted(parameter.default) != "None":
        return False
    bound = file.nodes(cst.Assign, cst.AnnAssign, cst.AugAssign, cst.NamedExpr, cst.For, cst.AsName, below=function)
    if any(dotted(t) == name.value for n in bound for t in (*targets(n), getattr(n, "target", None))):
        return False
    calls = callers.of(function)
    return bool(calls) and all(_gives_none(flow.given(call, function, name.value, at)) for at, call in calls)


def _gives_none(arg: cst.Arg | None) -> bool:
    return arg is None or (not arg.star and dotted(arg.value) == "None")
