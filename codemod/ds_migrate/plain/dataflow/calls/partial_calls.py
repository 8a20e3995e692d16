"""Calls of what ``functools.partial`` returns: those of its function, with the arguments of both.

A lambda that gives its one argument to an optimizer, with settings by keyword, is such a partial too, and so is one
without arguments that makes an object of a class.
"""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst

from ds_migrate.plain.dataflow.torch_names import kind_made_by
from ds_migrate.plain.dataflow.values import Kind, Value, Values, of_kind
from ds_migrate.plain.dataflow.variables import Variables
from ds_migrate.syntax.nodes import dotted, last_name, walk
from ds_migrate.syntax.source import SourceFile

Evaluate = Callable[[cst.CSTNode, SourceFile], Values]  # expression, file -> what it may be
_MADE_BY_LIBRARIES = (Kind.OPTIMIZER, Kind.LOADER)
PARTIAL, LAMBDA = "functools.partial", "lambda"


def as_partial(function: cst.Lambda) -> cst.Call | None:
    """Return the partial that does what ``lambda params: Adam(params, lr=lr)`` does; None for other lambdas.

    So does one of ``lambda: Adam(params, lr=lr)``.
    """
    params, made = function.params, function.body
    if isinstance(made, cst.Call) and made.args and not params.children and last_name(made.func)[:1].isupper():
        return cst.Call(cst.Name("partial"), [cst.Arg(made.func), *made.args])
    if not isinstance(made, cst.Call) or not made.args or len(params.children) != 1 or len(params.params) != 1:
        return None
    first, *settings = made.args
    name = params.params[0].name.value
    is_passed_on = not first.star and first.keyword is None and dotted(first.value) == name
    used = (part for setting in settings for part in walk(setting.value) if isinstance(part, cst.Name))
    if not is_passed_on or any(setting.keyword is None for setting in settings) or any(n.value == name for n in used):
        return None
    return cst.Call(cst.Name("partial"), [cst.Arg(made.func), *settings])


def called_by_partial(
    callee: Value, call: cst.Call, file: SourceFile, variables: Variables, evaluate: Evaluate
) -> tuple[Values, cst.Call] | None:
    """Return what a call of a partial calls, and that call with all arguments; None where no partial is called.

    Of partials of other files only optimizers and loaders are known, with the arguments of the call alone.
    """
    if callee.kind is not Kind.OBJECT or callee.name not in (PARTIAL, LAMBDA):
        return None
    owner, node = variables.file(callee), variables.node(callee)
    made = as_partial(node) if isinstance(node, cst.Lambda) else node
    if not isinstance(made, cst.Call) or not made.args or made.args[0].star:
        return None
    choices, given = evaluate(made.args[0].value, owner), made.args[1:]
    makers = frozenset(v for v in of_kind(choices, Kind.EXTERNAL) if kind_made_by(v.name) in _MADE_BY_LIBRARIES)
    if any(arg.star for arg in given):
        return None
    if owner is not file:
        is_plain = all(arg.keyword is not None for arg in given)
        return (makers, call) if makers and is_plain else None
    known = {arg.keyword.value for arg in call.args if arg.keyword is not None}
    first = [arg for arg in given if arg.keyword is None]
    last = [arg for arg in given if arg.keyword is not None and arg.keyword.value not in known]
    functions = makers
    if callee.name == PARTIAL:
        functions |= of_kind(choices, Kind.FUNCTION, Kind.METHOD, Kind.CLASS)
    return (functions, call.with_changes(args=[*first, *call.args, *last])) if functions else None
