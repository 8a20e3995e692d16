"""Text edits of a module at the places of its ``ast`` nodes. Every other character stays."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ds_migrate.upgrade.result import Notice, UpgradedModule

_LINE_BREAK = re.compile(r"\r\n|\r|\n")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class _Edit:
    start: int
    end: int
    text: str
    line: int = 0  # of the original that its lines replace; 0: the one where it begins


@dataclass
class ModuleEdits:
    """A module and the edits that it gets. Offsets count characters of ``text``."""

    data: bytes
    _edits: list[_Edit] = field(default_factory=list)
    _notices: list[Notice] = field(default_factory=list)  # with lines of the original

    def __post_init__(self) -> None:
        self._encoding, _ = tokenize.detect_encoding(io.BytesIO(self.data).readline)
        self.text = self.data.decode(self._encoding)
        self.tree = ast.parse(self.data)
        breaks = list(_LINE_BREAK.finditer(self.text))
        self._starts = [0, *(found.end() for found in breaks)]
        self._newline = breaks[0].group() if breaks else "\n"
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def offset(self, line: int, column: int) -> int:
        """Return where a place of ``ast`` is: ``line`` from 1, ``column`` in bytes of UTF-8."""
        start = self._starts[line - 1]
        end = self._starts[line] if line < len(self._starts) else len(self.text)
        prefix = self.text[start:end].encode("utf-8")[:column]
        return start + len(prefix.decode("utf-8"))

    def start(self, node: ast.expr | ast.stmt | ast.arg | ast.alias) -> int:
        """Return where the node begins, a definition with its first decorator."""
        decorators = getattr(node, "decorator_list", None)
        first = decorators[0] if decorators else node
        column = first.col_offset - 1 if decorators else first.col_offset
        return self.offset(first.lineno, column)

    def end(self, node: ast.expr | ast.stmt | ast.arg | ast.alias) -> int:
        """Return where the node ends."""
        return self.offset(node.end_lineno or 0, node.end_col_offset or 0)

    def source(self, node: ast.expr | ast.stmt) -> str:
        """Return the text of the node, as it is in the original."""
        return self.text[self.start(node) : self.end(node)]

    def indent(self, node: ast.stmt) -> str:
        """Return the white space in front of a statement that begins its line."""
        start = self.start(node)
        return self.text[self.line_start(start) : start]

    def line_start(self, offset: int) -> int:
        """Return where the line of the offset begins."""
        return max(start for start in self._starts if start <= offset)

    def line_end(self, offset: int) -> int:
        """Return where the next line begins."""
        return next((start for start in self._starts if start > offset), len(self.text))

    def begins_line(self, node: ast.stmt) -> bool:
        """Return whether only white space precedes the statement on its line."""
        return not self.indent(node).strip()

    def replace(self, start: int, end: int, text: str) -> None:
        """Put ``text``, with line feeds as line breaks, in the place of a part of the module."""
        self._edits.append(_Edit(start, end, text.replace("\r\n", "\n").replace("\n", self._newline)))

    def replace_node(self, node: ast.expr | ast.stmt, text: str) -> None:
        self.replace(self.start(node), self.end(node), text)

    def insert_before(self, statement: ast.stmt, lines: Sequence[str]) -> None:
        """Insert lines in front of a statement, indented as it is."""
        at, indent = self.line_start(self.start(statement)), self.indent(statement)
        self.replace(at, at, _block(indent, lines))

    def insert_after(self, statement: ast.stmt, lines: Sequence[str]) -> None:
        """Insert lines behind a statement, indented as it is."""
        indent = self.indent(statement)
        at = self.line_end(self.end(statement))
        block = _block(indent, lines)
        if at == len(self.text) and not _LINE_BREAK.fullmatch(self.text[-1:]):
            block = "\n" + block.removesuffix("\n")
        self._edits.append(_Edit(at, at, block.replace("\n", self._newline), statement.end_lineno or 0))

    def notice(self, node: ast.expr | ast.stmt, message: str, *, is_review: bool = False) -> None:
        """Report something about a node of the original."""
        self._notices.append(Notice(node.lineno, message, is_review))

    @property
    def state(self) -> tuple[int, int]:
        """The counts of edits and notices. Setting an earlier value forgets those made since."""
        return len(self._edits), len(self._notices)

    @state.setter
    def state(self, earlier: tuple[int, int]) -> None:
        del self._edits[earlier[0] :], self._notices[earlier[1] :]

    @property
    def is_changed(self) -> bool:
        return bool(self._edits)

    def result(self) -> UpgradedModule:
        """Return the module with all edits.

        Raises:
            ValueError: when edits overlap.
        """
        parts: list[str] = []
        origins: list[int] = []
        done, line = 0, 1

        def keep(end: int) -> None:
            nonlocal line
            kept = self.text[done:end]
            for _ in _LINE_BREAK.finditer(kept):
                origins.append(line)
                line += 1
            parts.append(kept)

        for edit in sorted(self._edits, key=lambda e: (e.start, e.end)):
            if edit.start < done:
                raise ValueError(f"edits overlap at offset {edit.start}")
            keep(edit.start)
            origins += [edit.line or line] * len(_LINE_BREAK.findall(edit.text))
            line += len(_LINE_BREAK.findall(self.text[edit.start : edit.end]))
            parts.append(edit.text)
            done = edit.end
        keep(len(self.text))
        origins.append(line)
        text = "".join(parts)
        data = text.encode("utf-8" if self._encoding == "utf-8-sig" else self._encoding)
        if self.data.startswith(_BOM):
            data = _BOM + data
        notices = (replace(notice, line=bisect_left(origins, notice.line) + 1) for notice in self._notices)
        return UpgradedModule(data, tuple(origins), tuple(notices))


def _block(indent: str, lines: Sequence[str]) -> str:
    return "".join(f"{indent}{line}\n" if line else "\n" for line in lines)
