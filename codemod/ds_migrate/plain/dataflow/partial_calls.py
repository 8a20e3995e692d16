"""Calls of what ``functools.partial`` returns: those of its function, with the arguments of both."""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst

from ds_migrate.plain.dataflow.torch_names import kind_made_by
from ds_migrate.plain.dataflow.values import Kind, Value, Values, of_kind
from ds_migrate.plain.dataflow.variables import Variables
from ds_migrate.syntax.source import SourceFile

Evaluate = Callable[[cst.CSTNode, SourceFile], Values]  # expression, file -> what it may be
PARTIAL = "functools.partial"


def called_by_partial(
    callee: Value, call: cst.Call, file: SourceFile, variables: Variables, evaluate: Evaluate
) -> tuple[Values, cst.Call] | None:
    """Return what a call of a partial calls, and that call with all arguments; None where no partial is called.

    Of partials of other files only optimizers are known, with the arguments of the call alone.
    """
    if callee.kind is not Kind.OBJECT or callee.name != PARTIAL:
        return None
    owner, made = variables.file(callee), variables.node(callee)
    if not isinstance(made, cst.Call) or not made.args or made.args[0].star:
        return None
    choices, given = evaluate(made.args[0].value, owner), made.args[1:]
    optimizers = frozenset(v for v in of_kind(choices, Kind.EXTERNAL) if kind_made_by(v.name) is Kind.OPTIMIZER)
    if any(arg.star for arg in given):
        return None
    if owner is not file:
        is_plain = all(arg.keyword is not None for arg in given)
        return (optimizers, call) if optimizers and is_plain else None
    known = {arg.keyword.value for arg in call.args if arg.keyword is not None}
    first = [arg for arg in given if arg.keyword is None]
    last = [arg for arg in given if arg.keyword is not None and arg.keyword.value not in known]
    functions = of_kind(choices, Kind.FUNCTION, Kind.METHOD, Kind.CLASS) | optimizers
    return (functions, call.with_changes(args=[*first, *call.args, *last])) if functions else None
