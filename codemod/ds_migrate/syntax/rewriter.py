"""The transform that applies all edits of a file to its tree."""

from __future__ import annotations

from collections import Counter
from typing import Any, TypeAlias

import libcst as cst

from ds_migrate.syntax.claims import Claims, Text
from ds_migrate.syntax.comments import own_comments
from ds_migrate.syntax.emptied_blocks import emptied, is_gone, settle
from ds_migrate.syntax.inserted_code import Statement, make_lines, parse_statements
from ds_migrate.syntax.joined_lines import LineJoiner
from ds_migrate.syntax.nodes import dotted, targets

Line: TypeAlias = cst.SimpleStatementLine | cst.SimpleStatementSuite


class Rewriter(cst.CSTTransformer):
    """The transform that applies the edits of a file."""

    def __init__(self, module: cst.Module, claims: Claims, has_comments: bool, joiner: LineJoiner | None) -> None:
        super().__init__()
        self._has_comments = has_comments
        self._module = module
        self._claims = claims
        self._joiner = joiner

    def on_visit(self, node: cst.CSTNode) -> bool:
        return node in self._claims.touched

    def on_leave(self, original_node, updated_node):  # type: ignore[no-untyped-def]
        if original_node not in self._claims.touched:
            return updated_node
        node = self._rewritten(original_node, updated_node)
        if isinstance(original_node, (cst.IndentedBlock, cst.Module)):
            node = settle(self._joiner.join(node) if self._joiner is not None else node)
        if self._joiner is not None and isinstance(original_node, (cst.SimpleStatementLine, cst.IndentedBlock)):
            lines = [node] if isinstance(node, cst.CSTNode) else list(node)
            beside = [len(found.get(original_node, ())) for found in (self._claims.above, self._claims.before)]
            if len(lines) == sum(beside) + len(self._claims.after.get(original_node, ())) + 1:
                self._joiner.note(original_node, lines[sum(beside)], is_gone(lines[sum(beside)]))
        return node

    def _rewritten(self, original_node: cst.CSTNode, updated_node: Any) -> Any:
        claims = self._claims
        node = updated_node
        for change in claims.changes.get(original_node, ()):
            node = change(node)
        node = _with_comments(node, claims.kept_comments.get(original_node, []))
        if isinstance(node, cst.Assign) and _does_nothing(node):
            return cst.RemoveFromParent()
        if original_node in claims.gone:
            if isinstance(original_node, cst.BaseSmallStatement):
                return cst.RemoveFromParent()
            node = emptied(node)
        if isinstance(node, (cst.SimpleStatementLine, cst.SimpleStatementSuite)) and not node.body:
            node = emptied(node)
        if isinstance(original_node, cst.SimpleStatementLine) and isinstance(node, cst.SimpleStatementLine):
            node = _ended(node, original_node.body[-1])
        if original_node in claims.expanded and isinstance(node, (cst.SimpleStatementLine, cst.SimpleStatementSuite)):
            statements = self._expand(node, claims.expanded[original_node])
            in_line = isinstance(node, cst.SimpleStatementLine)
            node = cst.FlattenSentinel(statements) if in_line else cst.IndentedBlock(statements)
        if self._has_comments and isinstance(original_node, (cst.SimpleStatementLine, cst.BaseCompoundStatement)):
            node = _with_comments(node, _lost(original_node, node))
        above, before, after = (
            [make_lines(code, self._module) for code in found.get(original_node, ())]
            for found in (claims.above, claims.before, claims.after)
        )
        if before or after:
            node = _surround(node, before, after)
        if above:
            node = cst.FlattenSentinel([*above, *(node if isinstance(node, cst.FlattenSentinel) else [node])])
        return node

    def _expand(self, line: Line, marks: dict[str, Text]) -> list[Statement]:
        statements: list[Statement] = []
        for small in line.body:
            value = small.value if isinstance(small, cst.Expr) else None
            text = marks.get(value.value) if isinstance(value, cst.Name) else None
            if isinstance(text, str):
                statements += parse_statements(text, self._module)
            else:
                statements.append(cst.SimpleStatementLine([small.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)]))
        comment = line.trailing_whitespace.comment
        above = list(line.leading_lines) if isinstance(line, cst.SimpleStatementLine) else []
        if comment is not None and len(statements) == 1 and isinstance(statements[0], cst.SimpleStatementLine):
            statements[0] = statements[0].with_changes(trailing_whitespace=line.trailing_whitespace)
        elif comment is not None:
            above.append(cst.EmptyLine(comment=comment))
        statements[0] = statements[0].with_changes(leading_lines=above)
        return statements


def _does_nothing(node: cst.Assign) -> bool:
    """Return whether an assignment gives a name what it holds, as where edits left no call around it."""
    return dotted(node.value) is not None and [dotted(target) for target in targets(node)] == [dotted(node.value)]


def _with_comments(node: Any, texts: list[str]) -> Any:
    """Return a statement, or the first of those that replace it, with comments above it."""
    if not texts:
        return node
    lines = [cst.EmptyLine(comment=cst.Comment(text)) for text in texts]
    if isinstance(node, cst.FlattenSentinel):
        first, *others = node
        return cst.FlattenSentinel([first.with_changes(leading_lines=[*lines, *first.leading_lines]), *others])
    return node.with_changes(leading_lines=[*node.leading_lines, *lines])


def _lost(before: cst.CSTNode, after: Any) -> list[str]:
    """Return the comments of a statement, those of its blocks left out, that it no longer has."""
    own = own_comments(before)
    if not own:
        return []
    statements = after if isinstance(after, cst.FlattenSentinel) else [after]
    guarded = [inner for outer in statements if isinstance(outer, cst.If) for inner in outer.body.body]
    there = Counter(text for statement in (*statements, *guarded) for text in own_comments(statement))
    lost = []
    for text in own:
        there[text] -= 1
        if there[text] < 0:
            lost.append(text)
    return lost


def _ended(line: cst.SimpleStatementLine, last: cst.BaseSmallStatement) -> cst.SimpleStatementLine:
    """Return the line, ending as it ended where its last statement went: without a semicolon, unless it had one."""
    if (
        not line.body
        or isinstance(last.semicolon, cst.Semicolon)
        or not isinstance(line.body[-1].semicolon, cst.Semicolon)
    ):
        return line
    return line.with_changes(body=[*line.body[:-1], line.body[-1].with_changes(semicolon=cst.MaybeSentinel.DEFAULT)])


def _surround(node: object, before: list[Any], after: list[Any]) -> cst.FlattenSentinel[cst.CSTNode]:
    """Put lines around a statement; the comment above it stays above what now comes first."""
    middle: list[Any] = list(node) if isinstance(node, cst.FlattenSentinel) else [node]
    if before and middle and isinstance(middle[0], (cst.SimpleStatementLine, cst.BaseCompoundStatement)):
        leading = middle[0].leading_lines
        middle[0] = middle[0].with_changes(leading_lines=before[0].leading_lines)
        before = [before[0].with_changes(leading_lines=leading), *before[1:]]
    return cst.FlattenSentinel([*before, *middle, *after])
