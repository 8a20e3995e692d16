"""Print an expression on one line, for code and messages that quote it."""

from __future__ import annotations

from typing import Any

import libcst as cst

from ds_migrate.syntax.nodes import code


def expression_text(node: cst.BaseExpression) -> str:
    """Return the expression on one line, as it is written there; line breaks in brackets and their comments go.

    A string that spans lines still does.
    """
    text = code(node)
    if "\n" not in text and "\r" not in text:
        return text
    joined = node.visit(_Joined())
    assert isinstance(joined, cst.BaseExpression)
    return code(joined)


_TIGHT = (
    cst.Arg, cst.Call, cst.Dot, cst.LeftCurlyBrace, cst.LeftParen, cst.LeftSquareBracket, cst.RightCurlyBrace,
    cst.RightParen, cst.RightSquareBracket, cst.Subscript,
)  # fmt: skip
"""Nodes with white space beside brackets and dots, where one line has none."""


class _Joined(cst.CSTTransformer):
    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        if isinstance(updated_node, cst.ParenthesizedWhitespace) or _is_continued(updated_node):
            return cst.SimpleWhitespace(" ")
        if isinstance(updated_node, cst.Call) and original_node.args and _ends_below(original_node.args[-1].comma):
            last = updated_node.args[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
            updated_node = updated_node.with_changes(args=[*updated_node.args[:-1], last])
        if isinstance(updated_node, _TIGHT):
            return updated_node.with_changes(
                **{
                    name: cst.SimpleWhitespace("")
                    for name in original_node.__dataclass_fields__
                    if name.startswith("whitespace_") and _breaks_line(getattr(original_node, name))
                }
            )
        if isinstance(updated_node, cst.Comma) and _breaks_line(original_node.whitespace_before):
            return updated_node.with_changes(whitespace_before=cst.SimpleWhitespace(""))
        return updated_node


def _ends_below(comma: cst.Comma | cst.MaybeSentinel) -> bool:
    return isinstance(comma, cst.Comma) and _breaks_line(comma.whitespace_after)


def _breaks_line(space: cst.CSTNode) -> bool:
    return isinstance(space, cst.ParenthesizedWhitespace) or _is_continued(space)


def _is_continued(space: cst.CSTNode) -> bool:
    return isinstance(space, cst.SimpleWhitespace) and "\\" in space.value
