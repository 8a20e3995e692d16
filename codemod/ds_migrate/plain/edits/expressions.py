"""Edits of expressions: calls around them, and a part, another one or nothing in their place."""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst

from ds_migrate.syntax.source import SourceFile

# Where a condition needs no parentheses.
_WHOLE = (
    cst.Expr, cst.Assign, cst.AnnAssign, cst.AugAssign, cst.Return, cst.Arg, cst.Lambda, cst.WithItem, cst.Element,
    cst.DictElement, cst.Index,
)  # fmt: skip


def wrap(file: SourceFile, node: cst.BaseExpression, *functions: str) -> None:
    """Put an expression into a call of a function, that into one of the next, and so on: ``f(x)``, ``g(f(x))``."""

    def wrapped(updated: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(updated, cst.BaseExpression)
        call = updated.with_changes(lpar=[], rpar=[])
        for function in functions:
            call = cst.Call(cst.Name(function), [cst.Arg(call)])
        return call.with_changes(lpar=updated.lpar, rpar=updated.rpar)

    file.change(node, wrapped)


def keep_argument(file: SourceFile, call: cst.Call, index: int, *functions: str) -> None:
    """Put an argument of a call in the place of the call, or a call of other functions with it, as in ``wrap()``."""

    def kept(updated: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(updated, cst.Call)
        return updated.args[index].value

    file.change(call, kept)
    if functions:
        wrap(file, call, *functions)


def keep_part(file: SourceFile, node: cst.BaseExpression, *fields: str) -> None:
    """Put a part of an expression in its place: ``func``, ``value`` is the module of ``module.to(device)``."""

    def kept(updated: cst.CSTNode) -> cst.CSTNode:
        for field in fields:
            updated = getattr(updated, field)
        return updated

    file.change(node, kept)


def choose(
    file: SourceFile,
    node: cst.BaseExpression,
    condition: str,
    other: Callable[[cst.BaseExpression], cst.BaseExpression],
) -> None:
    """Write ``node if condition else other``, with ``other`` made of the node as further edits leave it."""
    test, is_whole = cst.parse_expression(condition), isinstance(file.parent(node), _WHOLE)

    def change(updated: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(updated, cst.BaseExpression)
        choice = cst.IfExp(test, updated, other(updated))
        return choice if is_whole else choice.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])

    file.change(node, change)


def remove_call(file: SourceFile, call: cst.CSTNode) -> None:
    """Remove the statement that a call is; in another expression, leave the None that it returns."""
    if isinstance(file.parent(call), cst.Expr):
        file.remove(file.statement(call))
    else:
        file.replace(call, "None")
