"""Code that is inserted into a file: written with ``\\n`` and four spaces, put into the file's newline and indent."""

from __future__ import annotations

from typing import Any, TypeAlias

import libcst as cst

Statement: TypeAlias = cst.SimpleStatementLine | cst.BaseCompoundStatement


def parse_statements(code: str, module: cst.Module) -> list[Statement]:
    """Parse statements written with ``\\n`` and four spaces into the file's newline and indent."""
    text = "".join(line + module.default_newline for line in _reindented(code, module))
    return list(cst.parse_module(text, config=module.config_for_parsing).body)


def make_lines(code: str, module: cst.Module) -> cst.SimpleStatementLine:
    """Return whole statements, written likewise, that need no tree as nothing looks into them.

    Empty lines before the first are kept.
    """
    blank = len(code) - len(code.lstrip("\n"))
    lines: Any = _Lines(_reindented(code, module))
    return cst.SimpleStatementLine([lines], leading_lines=[cst.EmptyLine(indent=False)] * blank)


def _reindented(code: str, module: cst.Module) -> list[str]:
    return [_reindent(line, module.default_indent) for line in code.strip("\n").split("\n")]


def parse_expression(code: str, module: cst.Module) -> cst.BaseExpression:
    """Return an expression (it may span lines, written likewise)."""
    if "\n" not in code:
        return cst.parse_expression(code)
    statement = parse_statements(f"({code}\n)", module)[0]
    assert isinstance(statement, cst.SimpleStatementLine)
    value = statement.body[0]
    assert isinstance(value, cst.Expr)
    return value.value


def _reindent(line: str, indent: str) -> str:
    body = line.lstrip(" ")
    depth, rest = divmod(len(line) - len(body), 4)
    return indent * depth + " " * rest + body


class _Lines:
    """A placeholder for the small statement of a line, which prints whole lines at the depth where they are put."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def visit(self, _: cst.CSTVisitorT) -> _Lines:
        """Return the lines as they are: a visitor of the comments above them comes by."""
        return self

    def _codegen(self, state: Any, **_: Any) -> None:
        first, *others = self._lines
        state.add_token(first)
        for line in others:
            state.add_token(state.default_newline)
            if line:
                state.add_indent_tokens()
                state.add_token(line)
