"""Statements that go."""

from __future__ import annotations

import libcst as cst

from ds_migrate.syntax.source import SourceFile


def remove_call(file: SourceFile, call: cst.CSTNode) -> None:
    """Remove the statement that a call is."""
    statement = file.parent(call)
    assert isinstance(statement, cst.Expr)
    remove_statement(file, statement)


def remove_statement(file: SourceFile, small: cst.BaseSmallStatement) -> None:
    """Remove a small statement, with its line where it is alone there."""
    line = file.parent(small)
    file.remove(line if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 else small)
