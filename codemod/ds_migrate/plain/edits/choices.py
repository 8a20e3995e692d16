"""Expressions of which rank 0 evaluates one, and the others another."""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst

from ds_migrate.syntax.source import SourceFile

# Where a condition needs no parentheses.
_WHOLE = (
    cst.Expr, cst.Assign, cst.AnnAssign, cst.AugAssign, cst.Return, cst.Arg, cst.Lambda, cst.WithItem, cst.Element,
    cst.DictElement, cst.Index,
)  # fmt: skip


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
