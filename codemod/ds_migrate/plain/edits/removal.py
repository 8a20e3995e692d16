"""Statements that go."""

from __future__ import annotations

import libcst as cst

from ds_migrate.syntax.source import SourceFile


def remove_call(file: SourceFile, call: cst.CSTNode) -> None:
    """Remove the statement that a call is; in another expression, leave the None that it returns."""
    if isinstance(file.parent(call), cst.Expr):
        file.remove(file.statement(call))
    else:
        file.replace(call, "None")
