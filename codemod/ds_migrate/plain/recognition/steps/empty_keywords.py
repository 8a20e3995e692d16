"""Arguments that no call of a function gives anything: ``loss.backward(**kwargs)`` is ``loss.backward()``."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.syntax.nodes import dotted, is_literal, parameters, targets, walk
from ds_migrate.syntax.source import SourceFile

_DEPTH = 4  # functions that hand them on


def are_stars_empty(call: cst.Call, file: SourceFile, flow: Flow, depth: int = _DEPTH) -> bool:
    """Return whether the starred arguments of a call are ``**kwargs`` of its function, which are always empty."""
    function, stars = file.function(call), [arg for arg in call.args if arg.star]
    if function is None or function.decorators or not depth or any(arg.star != "**" for arg in stars):
        return False
    param = function.params.star_kwarg
    if param is None or any(dotted(arg.value) != param.name.value for arg in stars) or _is_used(function, param, call):
        return False
    named = {p.name.value for p in parameters(function)}
    calls = [(caller, one, flow.construction(one, caller).args) for caller, one in flow.callers.of(function)]
    return bool(calls) and all(
        all(arg.keyword is None or arg.keyword.value in named for arg in args)
        and (not any(arg.star for arg in args) or are_stars_empty(one, caller, flow, depth - 1))
        for caller, one, args in calls
    )


def are_arguments_empty(call: cst.Call, file: SourceFile, flow: Flow, depth: int = _DEPTH) -> bool:
    """Return whether the arguments of a call are None, or parameters of its function that no call of that gives."""
    given = [arg.value for arg in call.args if not is_literal(arg.value, "None")]
    if not given:
        return True
    function = file.function(call)
    if function is None or function.decorators or not depth:
        return False
    stars = (function.params.star_arg, function.params.star_kwarg)
    optional = [p for p in parameters(function) if p.default is not None and is_literal(p.default, "None")]
    names = {param.name.value for param in (*optional, *stars) if isinstance(param, cst.Param)}
    bound = {dotted(target) for line in file.nodes(cst.Assign, below=function) for target in targets(line)}
    calls = flow.callers.of(function)
    return (
        all(dotted(node) in names - bound for node in given)
        and bool(calls)
        and all(are_arguments_empty(one, caller, flow, depth - 1) for caller, one in calls)
    )


def _is_used(function: cst.FunctionDef, param: cst.Param, call: cst.Call) -> bool:
    """Return whether a function may put something into its ``**kwargs``, or hands them on elsewhere too."""
    handed_on = {id(arg.value) for arg in call.args if arg.star}
    names = (node for node in walk(function.body) if isinstance(node, cst.Name) and node.value == param.name.value)
    return any(id(node) not in handed_on for node in names)
