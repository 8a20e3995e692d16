"""Add pairs to a dict literal, laid out as those that are there."""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst

from ds_migrate.syntax.nodes import code


def add_pairs(node: cst.CSTNode, pairs: Mapping[str, str], room: int = 1000) -> cst.CSTNode:
    """Return a dict display with pairs at its end, each on a separate line where the others are.

    Args:
        node: the dict.
        pairs: expressions by key.
        room: characters that its line has left; a dict on one line that needs more gets a line for each pair.
    """
    assert isinstance(node, cst.Dict)
    needed = sum(len(f', "{key}": {value}') for key, value in pairs.items())
    if needed > room and node.elements and "\n" not in code(node):
        node = _on_lines(node)
    added = [cst.DictElement(cst.SimpleString(f'"{key}"'), cst.parse_expression(value)) for key, value in pairs.items()]
    if not node.elements:
        return node.with_changes(elements=_joined(added, cst.SimpleWhitespace(" "), cst.MaybeSentinel.DEFAULT))
    *others, last = node.elements
    closing, between = node.rbrace.whitespace_before, _between(node)
    before = between
    if isinstance(closing, cst.ParenthesizedWhitespace) and isinstance(between, cst.ParenthesizedWhitespace):
        # comments behind the last pair and below it stay there
        before = closing.with_changes(indent=between.indent, last_line=between.last_line)
    trailing = isinstance(last.comma, cst.Comma)
    comma = last.comma if isinstance(last.comma, cst.Comma) else cst.Comma()
    last = last.with_changes(comma=comma.with_changes(whitespace_after=before))
    new = _joined(added, between, cst.Comma() if trailing else cst.MaybeSentinel.DEFAULT)
    rbrace = node.rbrace.with_changes(whitespace_before=_plain(closing))
    return node.with_changes(elements=[*others, last, *new], rbrace=rbrace)


def _on_lines(node: cst.Dict) -> cst.Dict:
    """Return a dict on one line with a line for each pair."""
    inside = cst.ParenthesizedWhitespace(indent=True, last_line=cst.SimpleWhitespace("    "))
    *others, last = node.elements
    return node.with_changes(
        lbrace=cst.LeftCurlyBrace(whitespace_after=inside),
        elements=[*(e.with_changes(comma=cst.Comma(whitespace_after=inside)) for e in others),
                  last.with_changes(comma=cst.Comma())],
        rbrace=cst.RightCurlyBrace(whitespace_before=cst.ParenthesizedWhitespace(indent=True)),
    )  # fmt: skip


def _joined(
    elements: list[cst.DictElement], between: cst.BaseParenthesizableWhitespace, end: cst.Comma | cst.MaybeSentinel
) -> list[cst.DictElement]:
    commas = [cst.Comma(whitespace_after=between) for _ in elements[1:]]
    return [element.with_changes(comma=comma) for element, comma in zip(elements, [*commas, end], strict=True)]


def _between(node: cst.Dict) -> cst.BaseParenthesizableWhitespace:
    """Return what stands between two pairs, without the comments there."""
    first = node.elements[0]
    if len(node.elements) > 1 and isinstance(first.comma, cst.Comma):
        return _plain(first.comma.whitespace_after)
    opening = node.lbrace.whitespace_after
    return _plain(opening) if isinstance(opening, cst.ParenthesizedWhitespace) else cst.SimpleWhitespace(" ")


def _plain(space: cst.BaseParenthesizableWhitespace) -> cst.BaseParenthesizableWhitespace:
    if not isinstance(space, cst.ParenthesizedWhitespace):
        return space
    line = space.first_line.with_changes(whitespace=cst.SimpleWhitespace(""), comment=None)
    return space.with_changes(first_line=line, empty_lines=[])
