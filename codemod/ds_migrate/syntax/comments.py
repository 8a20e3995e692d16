"""The comments of nodes."""

from __future__ import annotations

import libcst as cst

from ds_migrate.syntax.nodes import code


class _CommentCollector(cst.CSTVisitor):
    def __init__(self) -> None:
        self.found: list[str] = []

    def visit_Comment(self, node: cst.Comment) -> None:  # noqa: N802
        self.found.append(node.value)


def comments(*nodes: cst.CSTNode) -> list[str]:
    """Return every comment inside the nodes, in source order."""
    collector = _CommentCollector()
    for node in nodes:
        if "#" in code(node):  # nearly never, and looking into white space takes long
            node.visit(collector)
    return collector.found


class _OwnCommentCollector(_CommentCollector):
    def on_visit(self, node: cst.CSTNode) -> bool:
        return not isinstance(node, cst.BaseSuite) and super().on_visit(node)


def own_comments(statement: cst.CSTNode) -> list[str]:
    """Return every comment of a statement, those of the blocks below it left out, in source order."""
    if isinstance(statement, cst.SimpleStatementLine):
        return comments(statement)
    has_body = isinstance(statement, cst.BaseCompoundStatement) and not isinstance(statement, cst.Match)
    bare = statement.with_changes(body=cst.SimpleStatementSuite([])) if has_body else statement
    if "#" not in code(bare):  # as in comments()
        return []
    collector = _OwnCommentCollector()
    statement.visit(collector)
    return collector.found
