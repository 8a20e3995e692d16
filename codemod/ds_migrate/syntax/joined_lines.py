"""Lines of several statements and blocks behind a colon: rules see one statement a line, and files keep theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import libcst as cst

from ds_migrate.syntax.nodes import code

_PARTS = ("body", "handlers", "cases", "orelse", "finalbody")  # where a compound statement holds others


@dataclass(frozen=True, eq=False)
class _Line:
    """The small statements between two line breaks, as the file has them, and the lines that rules see."""

    whole: cst.SimpleStatementLine | cst.SimpleStatementSuite
    pieces: Sequence[cst.SimpleStatementLine]
    outer: cst.CSTNode  # whose line it is


class JoinedLines:
    """The lines of a module that hold several statements, or stand behind a colon.

    Attributes:
        module: the module with one statement a line, and every suite a block; the very same one where it is so already.
        lines: those that are split there.
    """

    def __init__(self, module: cst.Module) -> None:
        self.lines: list[_Line] = []
        self._made: list[cst.CSTNode] = []  # so that no other node gets the identity of one that is made here
        self._origins: dict[int, cst.CSTNode] = {}
        self._of_piece: dict[int, _Line] = {}
        self.module: cst.Module = self._split(module, module)

    def origin(self, node: cst.CSTNode) -> cst.CSTNode:
        """Return the node of the file that begins where a node does."""
        return self._origins.get(id(node), node)

    def indentation(self, node: cst.CSTNode) -> tuple[cst.CSTNode, int]:
        """Return the node of the file whose line has the indentation of a statement, and the columns to add to it."""
        line = self._of_piece.get(id(node))
        if line is None:
            return self.origin(node), 0
        return line.outer, 4 if isinstance(line.whole, cst.SimpleStatementSuite) else 0

    def pieces_beside(self, statement: cst.SimpleStatementLine) -> Sequence[cst.SimpleStatementLine]:
        """Return the statements that share the line of a statement in the file, with that one."""
        line = self._of_piece.get(id(statement))
        return [statement] if line is None else line.pieces

    def _add(self, new: Any, old: cst.CSTNode) -> Any:
        self._made.append(new)
        self._origins[id(new)] = old
        return new

    def _split(self, node: Any, outer: cst.CSTNode) -> Any:
        """Return a node that holds statements, with one of them a line; the same node where nothing changes."""
        if isinstance(node, cst.SimpleStatementSuite):
            return self._add(cst.IndentedBlock(self._pieces(node, outer)), node)
        if isinstance(node, cst.SimpleStatementLine):
            return node
        return _with_parts(node, lambda part: self._split(part, node), self._split_statement, self._add)

    def _split_statement(self, node: cst.CSTNode) -> Sequence[cst.CSTNode]:
        if isinstance(node, cst.SimpleStatementLine) and len(node.body) > 1:
            return self._pieces(node, node)
        return [self._split(node, node)]

    def _pieces(
        self, whole: cst.SimpleStatementLine | cst.SimpleStatementSuite, outer: cst.CSTNode
    ) -> list[cst.SimpleStatementLine]:
        pieces = []
        for small in whole.body:
            is_first, is_last = small is whole.body[0], small is whole.body[-1]
            bare = self._add(small.with_changes(semicolon=cst.MaybeSentinel.DEFAULT), small)
            above = whole.leading_lines if is_first and isinstance(whole, cst.SimpleStatementLine) else ()
            below = whole.trailing_whitespace if is_last else cst.TrailingWhitespace()
            piece = cst.SimpleStatementLine([bare], leading_lines=above, trailing_whitespace=below)
            pieces.append(self._add(piece, small))
        line = _Line(whole, pieces, outer)
        self.lines.append(line)
        self._of_piece.update((id(piece), line) for piece in pieces)
        return pieces


class LineJoiner:
    """Puts lines together again in the rewritten module, where their statements are still beside each other.

    Args:
        column: returns where a node of the file begins.
        width: the columns that a line may have that was shorter.
    """

    def __init__(self, lines: JoinedLines, column: Callable[[cst.CSTNode], int], width: int) -> None:
        self._of = lines
        self._column = column
        self._width = width
        self._results: dict[int, tuple[_Line, int]] = {}  # by the identity of what a piece is rewritten to
        self._gone: set[int] = set()
        self._blocks: dict[int, cst.CSTNode] = {}  # what blocks of suites are rewritten to
        self._whole: set[int] = set()  # the identities of lines that are put together
        self._kept: list[cst.CSTNode] = []
        for line in lines.lines:
            self._results.update((id(piece), (line, index)) for index, piece in enumerate(line.pieces))

    def note(self, original: cst.CSTNode, node: cst.CSTNode, is_gone: bool) -> None:
        """Take note of what a statement or the block of a suite is rewritten to."""
        self._kept.append(node)
        place = self._results.get(id(original))
        if place is not None:
            self._results[id(node)] = place
            if is_gone:
                self._gone.add(id(node))
        elif isinstance(original, cst.IndentedBlock):
            self._blocks[id(node)] = self._of.origin(original)

    def join(self, block: Any) -> Any:
        """Return a block with its lines put together; the statements of one that cannot be have separate lines."""
        body: list[Any] = []
        for line, group in groupby(block.body, lambda s: self._results.get(id(s), (None, 0))[0]):
            statements = list(group)
            body += statements if line is None else self._joined(line, statements)
        return block.with_changes(body=body)

    def _joined(self, line: _Line, statements: list[Any]) -> list[Any]:
        whole, kept = line.whole, [s for s in statements if id(s) not in self._gone]
        is_whole = [self._results[id(s)][1] for s in statements] == [*range(len(line.pieces))]
        are_lines = all(isinstance(s, cst.SimpleStatementLine) and len(s.body) == 1 for s in kept)
        if not (is_whole and kept and are_lines) or any(s.leading_lines for s in statements[1:]):
            return statements
        semicolons = [*(whole.body[self._results[id(s)][1]].semicolon for s in kept[:-1]), whole.body[-1].semicolon]
        new = cst.SimpleStatementLine(
            [s.body[0].with_changes(semicolon=semicolon) for s, semicolon in zip(kept, semicolons, strict=True)],
            leading_lines=statements[0].leading_lines,
            trailing_whitespace=whole.trailing_whitespace,
        )
        if not self._fits(new, whole):
            return statements
        self._kept.append(new)
        self._whole.add(id(new))
        return [new]

    def _fits(self, new: cst.SimpleStatementLine, whole: cst.SimpleStatementLine | cst.SimpleStatementSuite) -> bool:
        after, before = (code(cst.SimpleStatementLine(line.body)).strip() for line in (new, whole))
        longest = max(self._width - self._column(whole), len(before))
        return after.count("\n") <= before.count("\n") and ("\n" in after or len(after) <= longest)

    def restore(self, node: Any) -> Any:
        """Return a rewritten node, and what is below it and has not changed as the file has it."""
        if isinstance(node, cst.SimpleStatementLine):
            return node
        origin = self._of.origin(node)
        if origin is not node:
            return origin
        suite = self._blocks.get(id(node))
        if isinstance(suite, cst.SimpleStatementSuite) and isinstance(node, cst.IndentedBlock):
            line = node.body[0] if len(node.body) == 1 and not node.footer else None
            if isinstance(line, cst.SimpleStatementLine) and id(line) in self._whole and not line.leading_lines:
                return suite.with_changes(body=line.body)
        return _with_parts(node, self.restore, lambda one: [self.restore(one)])


def _with_parts(
    node: Any,
    change: Callable[[Any], Any],
    change_item: Callable[[Any], Sequence[Any]],
    made: Callable[[Any, cst.CSTNode], Any] = lambda new, _: new,
) -> Any:
    """Return a node with what it holds of other statements changed; the same node where none is."""
    changed: dict[str, Any] = {}
    for name in _PARTS:
        part = getattr(node, name, None)
        if isinstance(part, (list, tuple)):
            items = [new for item in part for new in change_item(item)]
            if len(items) != len(part) or any(a is not b for a, b in zip(items, part, strict=True)):
                changed[name] = items
        elif part is not None and (new_part := change(part)) is not part:
            changed[name] = new_part
    return made(node.with_changes(**changed), node) if changed else node
