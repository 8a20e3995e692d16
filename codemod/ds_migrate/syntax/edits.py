"""The edits of one file, claimed by rules and applied in one libcst transform.

Rules never rewrite a tree themselves: they order "this expression becomes that", "this statement goes", "these lines
come before it", and one transformer does it all. Comments of a statement that goes move to the next one, so that no
comment is ever lost. Those of expressions that go move above their statement.
"""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from ds_migrate.syntax.claims import Change, Claims, Text
from ds_migrate.syntax.inserted_code import Statement, parse_expression, parse_statements
from ds_migrate.syntax.joined_lines import LineJoiner
from ds_migrate.syntax.rewriter import Line, Rewriter


class Edits:
    """The edits of one file.

    Attributes:
        claims: what is claimed so far.
    """

    def __init__(self, module: cst.Module) -> None:
        self.module = module
        self.claims = Claims()

    def __bool__(self) -> bool:
        return bool(self.claims)

    def touch(self, node: cst.CSTNode, ancestors: Iterable[cst.CSTNode]) -> None:
        """Tell the transform that something changes at ``node``: it only descends where something does."""
        self.claims.touched.add(node)
        for ancestor in ancestors:
            if ancestor in self.claims.touched:
                break
            self.claims.touched.add(ancestor)

    def is_touched(self, node: cst.CSTNode) -> bool:
        """Return whether something changes at the node or below it."""
        return node in self.claims.touched

    def once(self, node: cst.CSTNode, what: str) -> bool:
        """Return True on the first call for a node and a code: trials may share a base class."""
        if (node, what) in self.claims.done:
            return False
        self.claims.done.add((node, what))
        return True

    def is_done(self, node: cst.CSTNode, what: str) -> bool:
        """Return whether ``once`` was called for a node and a code."""
        return (node, what) in self.claims.done

    def change(self, node: cst.CSTNode, change: Change) -> None:
        """Apply ``change`` to the node once everything below it has been rewritten."""
        self.claims.changes.setdefault(node, []).append(change)

    def replace(self, node: cst.CSTNode, new: cst.CSTNode) -> None:
        self.change(node, lambda _: new)

    def remove(self, statement: cst.CSTNode) -> None:
        """Drop a statement (a line, or one small statement of a line); its comments stay."""
        self.claims.gone.add(statement)

    def before(
        self,
        statement: cst.BaseStatement,
        code: str,
        above_comments: bool = False,
        instead_of: str = "",
        first: bool = False,
    ) -> None:
        """Insert lines before a statement, between it and its comments or above those; ``instead_of`` lines that were
        inserted there already, or as the ``first`` of them."""
        into = self.claims.above if above_comments else self.claims.before
        lines = into.setdefault(statement, [])
        if instead_of in lines:
            lines[lines.index(instead_of)] = code
        else:
            lines.insert(0 if first else len(lines), code)

    def after(self, statement: cst.BaseStatement, code: str) -> None:
        self.claims.after.setdefault(statement, []).append(code)

    def keep_comments(self, statement: cst.CSTNode, found: list[str]) -> None:
        """Put comments of code that goes above the statement that it was a part of."""
        self.claims.kept_comments.setdefault(statement, []).extend(found)

    def expand(self, line: Line, small: cst.BaseSmallStatement, code: Text) -> None:
        """Put whole statements in the place of one small statement; others on its line get separate lines.

        ``code`` may be a function of the small statement once everything below it has been rewritten.
        """
        marks = self.claims.expanded.setdefault(line, {})
        mark = f"_ds_migrate_{len(marks)}"
        marks[mark] = code

        def put_mark(updated: cst.CSTNode) -> cst.CSTNode:
            if not isinstance(code, str):
                marks[mark] = code(updated)
            return cst.Expr(cst.Name(mark))

        self.change(small, put_mark)

    def parse(self, code: str) -> list[Statement]:
        """Parse statements written with ``\\n`` and four spaces into the file's newline and indent."""
        return parse_statements(code, self.module)

    def expression(self, code: str) -> cst.BaseExpression:
        """Return an expression (it may span lines, written likewise)."""
        return parse_expression(code, self.module)

    def apply(self, *, has_comments: bool, joiner: LineJoiner | None = None) -> cst.Module:
        """Return the tree with all edits made; whether a comment was lost is looked for where the tree has one."""
        if not self:
            return self.module
        return self.module.visit(Rewriter(self.module, self.claims, has_comments, joiner))
