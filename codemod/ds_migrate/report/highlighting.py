"""Source text as a terminal can show it: decoded, harmless, highlighted, and folded into rows without losing any."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from pygments.lexer import Lexer
from pygments.lexers.data import JsonLexer, YamlLexer
from pygments.lexers.python import PythonLexer
from pygments.token import Comment, Keyword, Name, Number, Operator, String, Token, _TokenType
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from ds_migrate.findings import FileKind, FileResult
from ds_migrate.redaction import masked_lines
from ds_migrate.report.escaping import encoding_of, visible
from ds_migrate.report.patch import split_lines

TAB = 4
NO_NEWLINE = "  ⏎̸ no newline at end of file"
_LEXERS = {FileKind.PYTHON: PythonLexer, FileKind.EXPERIMENT: YamlLexer}
_SEPARATOR = re.compile(r"[\s,(\[{=.:/]+")
_SCOPE = re.compile(r"\s*(?:async\s+)?(?:class|def)\s+\w+")


@dataclass(frozen=True)
class LineLook:
    """Styles of a context, removed or added line, and of its changed words; ``fills``: the row is tinted to its end."""

    gutter: str
    sign: str
    code: str
    word: str
    fills: bool


# Colours of tokens by kind, least specific first. Context lines use the terminal's own colours, which fit its
# background whatever it is; tinted lines bring both colours, so they can be read on any.
_ANSI = {
    Keyword: "magenta", Name.Builtin: "cyan", Name.Function: "blue", Name.Class: "blue", Name.Decorator: "yellow",
    String: "green", Number: "cyan", Operator.Word: "magenta", Comment: "bright_black italic", Name.Tag: "blue",
}  # fmt: skip
_DARK = {
    Token: "#e6e6e6", Keyword: "#ff7ab2", Name.Builtin: "#7fdbca", Name.Function: "#82aaff", Name.Class: "#82aaff",
    Name.Decorator: "#ffcb6b", String: "#c3e88d", Number: "#f78c6c", Operator.Word: "#ff7ab2",
    Comment: "#a0a8b8 italic", Name.Tag: "#82aaff",
}  # fmt: skip
_LIGHT = {
    Token: "#1f2328", Keyword: "#a0266d", Name.Builtin: "#0b6b74", Name.Function: "#0550ae", Name.Class: "#0550ae",
    Name.Decorator: "#8a5a00", String: "#0a5c2b", Number: "#953800", Operator.Word: "#a0266d",
    Comment: "#57606a italic", Name.Tag: "#0550ae",
}  # fmt: skip


# The same kinds as classes of an HTML page.
_CLASSES = {
    Keyword: "k", Name.Builtin: "b", Name.Function: "f", Name.Class: "f", Name.Decorator: "d", String: "s", Number: "m",
    Operator.Word: "k", Comment: "o", Name.Tag: "f",
}  # fmt: skip


def token_class(kind: _TokenType) -> str:
    """Return the class of a token; empty for what has no colour."""
    while kind not in _CLASSES:
        if kind.parent is None:
            return ""
        kind = kind.parent
    return _CLASSES[kind]


@dataclass(frozen=True)
class Palette:
    """Colours for one console: tints where it has 256 colours or more, else the 16 that every terminal has."""

    tinted: bool
    light: bool

    @classmethod
    def of(cls, console: Console, theme: str) -> Palette:
        """Return the colours for a console. ``theme``: its background is light, dark, or what it reports (auto)."""
        tinted = console.color_system in ("256", "truecolor") and not console.no_color
        # Set by some terminals to "foreground;background"; 7 and 15 are white. Others report nothing: dark is likelier.
        reported = os.environ.get("COLORFGBG", "").rpartition(";")[2] in ("7", "15")
        return cls(tinted, theme == "light" or (theme == "auto" and reported))

    def line(self, sign: str) -> LineLook:
        if sign == " ":
            return LineLook("bright_black", "", "", "", False)
        if not self.tinted:
            colour = "red" if sign == "-" else "green"
            return LineLook("bright_black", f"bold {colour}", "", "underline", False)
        if self.light:
            tint, strong, bright = (
                ("#ffebe9", "#ffc9c4", "#b3261e") if sign == "-" else ("#e6ffec", "#aaf0bc", "#116329")
            )
            number, code = "#57606a", "#1f2328"
        else:
            tint, strong, bright = (
                ("#331c21", "#6a2d36", "#ff8f8f") if sign == "-" else ("#172d20", "#27613c", "#7ee29b")
            )
            number, code = "#c0c6d0", "#e6e6e6"
        return LineLook(f"{number} on {strong}", f"bold {bright} on {tint}", f"{code} on {tint}", f"on {strong}", True)

    def token(self, kind: _TokenType, sign: str) -> str:
        colours = _ANSI if sign == " " or not self.tinted else _LIGHT if self.light else _DARK
        while kind not in colours:
            if kind.parent is None:
                return ""
            kind = kind.parent
        return colours[kind]


class SourceText:
    """One version of a file. ``lines`` are its bytes by line; ``styled`` is one of them, ready to show."""

    def __init__(self, file: FileResult, data: bytes) -> None:
        self.lines = split_lines(data)
        self._kind = file.kind
        self._encoding = encoding_of(file, data)
        # In a file of CRLF lines throughout, carriage returns are no news; in any other they are shown.
        self._carriage_returns = all(line.endswith(b"\r\n") for line in self.lines if line.endswith(b"\n"))

    def text(self, index: int) -> str:
        """Return the line, decoded, without its line end; in an experiment config secrets are masked."""
        return self._texts[index]

    @cached_property
    def _texts(self) -> list[str]:
        decoded = list(map(self._decoded, range(len(self.lines))))
        return masked_lines(decoded) if self._kind is FileKind.EXPERIMENT else decoded

    def _decoded(self, index: int) -> str:
        line = self.lines[index]
        line = line.removesuffix(b"\n")
        if self._carriage_returns:
            line = line.removesuffix(b"\r")
        try:
            text = line.decode(self._encoding)
        except UnicodeDecodeError:
            text = line.decode("utf-8", "surrogateescape")
        return text.removeprefix("\ufeff") if index == 0 else text

    def styled(self, index: int, palette: Palette, sign: str) -> Text:
        """Return the line with its colours; tabs, control characters and a missing newline are shown as such."""
        shown = Text(style=palette.line(sign).code)
        for kind, value in self._tokens[index]:
            style = palette.token(kind, sign)
            for piece in re.split(r"(\t)", value):
                if piece == "\t":
                    shown.append("→".ljust(TAB - shown.cell_len % TAB), "dim")
                elif piece:
                    shown.append(visible(piece), style or None)
        if not self.lines[index].endswith(b"\n"):
            shown.append(NO_NEWLINE, "dim italic")
        return shown

    def tokens(self, index: int) -> list[tuple[_TokenType, str]]:
        """Return the line (without its line end) in pieces, each with its kind."""
        return self._tokens[index]

    def scope(self, index: int) -> str:
        """Return the class or function line that line ``index`` (from 0) is inside of; empty when there is none."""
        if self._kind is not FileKind.PYTHON:
            return ""
        texts = map(self.text, range(index, len(self.lines)))
        indent = next((_indent(text) for text in texts if text.strip()), 0)
        for text in map(self.text, range(index - 1, -1, -1)):
            found = _SCOPE.match(text)
            if found and _indent(text) < indent:
                return visible(found.group().strip())
        return ""

    @cached_property
    def _tokens(self) -> list[list[tuple[_TokenType, str]]]:
        """Tokens line by line: the whole file is read at once, so that strings over many lines are known as such."""
        texts = [self.text(index) for index in range(len(self.lines))]
        lines: list[list[tuple[_TokenType, str]]] = [[]]
        lexer: Lexer = _LEXERS.get(self._kind, JsonLexer)()
        for _, kind, value in lexer.get_tokens_unprocessed("\n".join(texts)):
            for position, part in enumerate(value.split("\n")):
                if position:
                    lines.append([])
                if part:
                    lines[-1].append((kind, part))
        if ["".join(part for _, part in line) for line in lines] == texts:
            return lines
        return [[(Token, text)] for text in texts]  # never show what a lexer made up


def fold(text: Text, width: int) -> Iterator[Text]:
    """Yield ``text`` in rows of at most ``width`` cells, cut after a separator where there is one; nothing is lost.

    Rows after the first are indented like the line, a little further.
    """
    plain = text.plain
    indent = min(len(plain) - len(plain.lstrip()) + TAB, max(width // 2, 1))
    start, room, lead = 0, max(width, 2), ""
    while start < len(plain):
        end = start
        used = 0
        while end < len(plain) and (used := used + cell_len(plain[end])) <= room:
            end += 1
        end = max(end, start + 1)  # a character wider than the room
        if end < len(plain):
            separators = list(_SEPARATOR.finditer(plain, start + (end - start) // 2, end))
            end = separators[-1].end() if separators else end
        yield Text.assemble((lead, text.style), text[start:end]) if lead else text[start:end]
        start, room, lead = end, max(width - indent, 2), " " * min(indent, max(width - 2, 0))
    if not plain:
        yield text


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())
