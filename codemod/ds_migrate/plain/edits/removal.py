"""Statements that go."""

from __future__ import annotations

import libcst as cst

from ds_migrate.syntax.source import SourceFile


def remove_call(file: SourceFile, call: cst.CSTNode) -> None:
    """Remove the statement that a call is; in another expression, leave the None that it returns."""
    statement = file.parent(call)
    if isinstance(statement, cst.Expr):
        remove_statement(file, statement)
    else:
        file.replace(call, "None")


def remove_statement(file: SourceFile, small: cst.BaseSmallStatement) -> None:
    """Remove a small statement, with its line where it is alone there."""
    line = file.parent(small)
    file.remove(line if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 else small)
