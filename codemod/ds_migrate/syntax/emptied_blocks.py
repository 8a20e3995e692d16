"""Blocks from which statements go: their comments stay, and no block is left empty."""

from __future__ import annotations

from itertools import dropwhile

import libcst as cst

from ds_migrate.syntax.comments import comments
from ds_migrate.syntax.nodes import walk

# Replaces a removed statement until its block is settled: libcst itself would drop an empty line, comments too.
_GONE = cst.Pass()
_EMPTY = cst.Pass()  # all that is left of a block
# Calls that a condition may make and still go.
_PURE_CALLS = frozenset(
    {"get_hparam", "get_hparams", "get", "isinstance", "hasattr", "getattr", "len", "bool", "is_available",
     "device_count", "get_world_size", "is_initialized"}
)  # fmt: skip


def is_gone(statement: object) -> bool:
    """Return whether a line is left only for the comments of its statement, which went."""
    return isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1 and statement.body[0] is _GONE


def emptied(line: cst.CSTNode) -> cst.CSTNode:
    """Return a line without its statement: a carrier for its comments until the block is settled."""
    if isinstance(line, cst.SimpleStatementSuite):
        return line.with_changes(body=[_EMPTY])
    if not isinstance(line, cst.SimpleStatementLine):
        raise TypeError(f"only simple statements are removed, not {type(line).__name__}")
    return line.with_changes(body=[_GONE])


def settle(block: cst.IndentedBlock | cst.Module) -> cst.IndentedBlock | cst.Module:
    """Give the comments of removed lines to the next statement (or the block's foot) and keep the block non-empty."""
    kept: list[cst.CSTNode] = []
    carried: list[cst.EmptyLine] = []
    for statement in block.body:
        if isinstance(statement, cst.If) and _has_no_effect(statement):
            carried.extend((*statement.leading_lines, *_comment_lines(statement)))
            continue
        if is_gone(statement):
            assert isinstance(statement, cst.SimpleStatementLine)
            carried.extend(statement.leading_lines)
            carried.extend(_comment_lines(statement.trailing_whitespace))
            continue
        if carried and isinstance(statement, (cst.SimpleStatementLine, cst.BaseCompoundStatement)):
            above, below = _tidy(carried), statement.leading_lines
            if above and below and not (above[-1].comment or below[0].comment):
                above = above[:-1]  # one blank line separates what is left
            statement = statement.with_changes(leading_lines=[*above, *below])
            carried = []
        elif (
            not kept
            and statement is not block.body[0]
            and isinstance(block, cst.IndentedBlock)
            and isinstance(statement, (cst.SimpleStatementLine, cst.BaseCompoundStatement))
        ):
            lines = dropwhile(lambda line: line.comment is None, statement.leading_lines)
            statement = statement.with_changes(leading_lines=[*lines])  # they separated it from what went
        before = kept[-1] if kept else None
        if isinstance(statement, cst.If) and isinstance(before, cst.If) and statement.test is before.test:
            kept[-1] = _joined(before, statement)
            continue
        kept.append(statement)
    if carried:
        block = block.with_changes(footer=[*_tidy(carried), *block.footer])
    if not kept and isinstance(block, cst.IndentedBlock):
        kept = [cst.SimpleStatementLine([_EMPTY])]
    return block.with_changes(body=kept)


def _joined(first: cst.If, second: cst.If) -> cst.If:
    """Return neighbours that edits have put under the very same condition, under it together."""
    above = [line if line.comment else line.with_changes(indent=False) for line in second.leading_lines]
    statement, *others = second.body.body
    body = [*first.body.body, statement.with_changes(leading_lines=above), *others]
    return first.with_changes(body=first.body.with_changes(body=body))


def _has_no_effect(node: cst.If | cst.Else) -> bool:
    """Return whether every branch went, and nothing is missed when the conditions are not asked."""
    line = node.body.body[0] if isinstance(node.body, cst.IndentedBlock) else node.body
    emptied = isinstance(line, (cst.SimpleStatementLine, cst.SimpleStatementSuite)) and line.body[0] is _EMPTY
    if not emptied or isinstance(node, cst.Else):
        return emptied
    return all(map(_is_pure, walk(node.test))) and (node.orelse is None or _has_no_effect(node.orelse))


def _is_pure(node: cst.CSTNode) -> bool:
    if isinstance(node, cst.Call):
        name = node.func.attr if isinstance(node.func, cst.Attribute) else node.func
        return isinstance(name, cst.Name) and name.value in _PURE_CALLS
    return not isinstance(node, (cst.NamedExpr, cst.Await, cst.Yield))


def _comment_lines(node: cst.CSTNode) -> list[cst.EmptyLine]:
    """Return the comments of what goes, each on a separate line (those above an ``if`` stay lines already)."""
    if isinstance(node, cst.If):
        node = node.with_changes(leading_lines=[])
    return [cst.EmptyLine(comment=cst.Comment(text)) for text in comments(node)]


def _tidy(lines: list[cst.EmptyLine]) -> list[cst.EmptyLine]:
    """Keep comments, and drop blank lines without a comment beside them: they separated removed statements."""
    if any(line.comment for line in lines):
        return lines
    return lines[:1]
