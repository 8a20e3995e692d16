"""Report what became of a trial for the API before 0.13, which the upgrade has rewritten for today's."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.source import SourceFile

CODE = Code.OLD_API


def apply_file(file: SourceFile, contexts: Sequence[RuleContext]) -> None:
    ctx = contexts[0]
    for notice in ctx.upgraded.get(file.path, ()):
        node = _node_at(file, notice.line)
        if notice.is_review:
            ctx.review(CODE, file, node, notice.message)
        else:
            ctx.converted(CODE, file, node, notice.message)


def _node_at(file: SourceFile, line: int) -> cst.CSTNode:
    """Return the statement that begins on the line, else the last one before it."""
    statements: list[cst.CSTNode] = file.nodes(cst.ClassDef, cst.FunctionDef, cst.SimpleStatementLine)
    return max((s for s in statements if file.position(s)[0] <= line), key=lambda s: file.position(s)[0])
