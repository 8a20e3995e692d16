"""Expressions that are put into calls, and those of which only a part is kept."""

from __future__ import annotations

import libcst as cst

from ds_migrate.syntax.source import SourceFile


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
