"""One parsed file: its tree, its parents, its positions, and the edits that rules claim."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import libcst as cst
from libcst._nodes.internal import CodegenState

from ds_migrate.inline import Comment, comments_in
from ds_migrate.syntax.edits import Change, Edits
from ds_migrate.syntax.imports import Imports
from ds_migrate.syntax.names import Names
from ds_migrate.syntax.tree import children, comments, walk

# libcst recurses once per nesting level; a 500-term sum needs more than Python's default.
_RECURSION_LIMIT = 20_000


class SourceError(Exception):
    """The file cannot be worked on; ``line`` counts from 1 (0 when unknown), ``code`` is the finding's code."""

    def __init__(self, code: str, message: str, line: int = 0, column: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.line = line
        self.column = column


@dataclass
class _PositionState(CodegenState):
    """Prints the module while it notes where each node starts: one pass for the round-trip check and positions."""

    def __post_init__(self) -> None:
        self.starts: dict[int, tuple[int, int]] = {}
        self.line = 1
        self.column = 0

    def add_token(self, value: str) -> None:
        self.tokens.append(value)
        self._move(value)

    def add_indent_tokens(self) -> None:
        self.tokens.extend(self.indent_tokens)
        for token in self.indent_tokens:
            self._move(token)

    def _move(self, value: str) -> None:
        if "\n" in value or "\r" in value:
            lines = value.replace("\r\n", "\n").replace("\r", "\n").split("\n")
            self.line += len(lines) - 1
            self.column = len(lines[-1])
        else:
            self.column += len(value)

    def before_codegen(self, node: cst.CSTNode) -> None:
        self.starts[id(node)] = (self.line, self.column)

    def record_syntactic_position(  # type: ignore[override]  # any context manager does
        self,
        node: cst.CSTNode,
        *,
        start_node: cst.CSTNode | None = None,
        end_node: cst.CSTNode | None = None,
    ) -> AbstractContextManager[None]:
        """Called where a node's own text begins, past its comments and parentheses."""
        del start_node, end_node
        self.starts[id(node)] = (self.line, self.column)
        return _NOTHING


# One object for thousands of calls: entering a generator each time costs more than all the printing.
_NOTHING = nullcontext()


class SourceFile:
    """A parsed Python file.

    Raises ``SourceError`` when it does not decode, does not parse, or when libcst cannot print it back byte for
    byte (a few valid files: ``except OSError :`` loses its space), because then untouched text could not be promised.
    """

    def __init__(self, path: Path, data: bytes) -> None:
        self.path = path
        self.data = data
        sys.setrecursionlimit(max(sys.getrecursionlimit(), _RECURSION_LIMIT))
        try:
            self.module = cst.parse_module(data)
        except cst.ParserSyntaxError as error:
            raise SourceError("DSM001", error.message, error.raw_line, error.raw_column + 1) from error
        except (UnicodeDecodeError, LookupError, SyntaxError, RecursionError) as error:
            raise SourceError("DSM001", f"cannot be read as Python: {error}") from error
        state = _PositionState(default_indent=self.module.default_indent, default_newline=self.module.default_newline)
        self.module._codegen(state)
        if self._encode("".join(state.tokens)) != data:
            raise SourceError("DSM002", "libcst cannot print this file back byte for byte")
        self._starts = state.starts
        self._parents: dict[cst.CSTNode, cst.CSTNode] | None = None
        self._by_kind: dict[type, list[cst.CSTNode]] | None = None
        self.edits = Edits(self.module)
        self._names: Names | None = None
        self._imports: Imports | None = None

    def close(self) -> None:
        """Let go of the tree. Edits refer to their file, so it would wait for a garbage collection otherwise."""
        vars(self).clear()

    @property
    def names(self) -> Names:
        if self._names is None:
            self._names = Names(self.module)
        return self._names

    @property
    def imports(self) -> Imports:
        if self._imports is None:
            self._imports = Imports(self)
        return self._imports

    def _encode(self, text: str) -> bytes:
        data = text.encode(self.module.encoding)
        if self.data.startswith(b"\xef\xbb\xbf") and not data.startswith(b"\xef\xbb\xbf"):
            data = b"\xef\xbb\xbf" + data
        return data

    def render(self) -> bytes:
        """The file with every edit applied."""
        return self._encode(self.edits.apply().code)

    def position(self, node: cst.CSTNode) -> tuple[int, int]:
        """Line and column of the node's first token, both from 1."""
        line, column = self._starts.get(id(node), (1, 0))
        return line, column + 1

    def nodes(self, *kinds: type[cst.CSTNode]) -> Iterator[Any]:
        """Every node of exactly these classes, kind by kind, in source order; the tree is walked once for all."""
        if self._by_kind is None:
            self._by_kind = {}
            for node in walk(self.module):
                self._by_kind.setdefault(type(node), []).append(node)
        for kind in kinds:
            yield from self._by_kind.get(kind, ())

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        if self._parents is None:
            self._parents = {}
            stack: list[cst.CSTNode] = [self.module]
            while stack:
                current = stack.pop()
                for child in children(current):
                    self._parents[child] = current
                    stack.append(child)
        return self._parents.get(node)

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """From the node's parent up to the module."""
        current = self.parent(node)
        while current is not None:
            yield current
            current = self.parent(current)

    def function(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        """The innermost function around the node."""
        return next((a for a in self.ancestors(node) if isinstance(a, cst.FunctionDef)), None)

    def statement(self, node: cst.CSTNode) -> cst.BaseStatement:
        """The innermost statement that holds the node: a line, or the head of a compound statement."""
        for candidate in (node, *self.ancestors(node)):
            if isinstance(candidate, cst.BaseStatement):
                return candidate
        raise AssertionError("every expression stands in a statement")

    def statement_in(self, node: cst.CSTNode, function: cst.FunctionDef) -> cst.BaseStatement | None:
        """The statement directly in the function's body that holds the node; None when it is not inside."""
        inner: cst.CSTNode = node
        for outer in self.ancestors(node):
            if outer is function.body and isinstance(inner, cst.BaseStatement):
                return inner
            inner = outer
        return None

    # -- edits: each claims its node, so that the transform descends to it ---------------------------------------

    def _claim(self, node: cst.CSTNode) -> None:
        self.edits.touch(node, self.ancestors(node))

    def change(self, node: cst.CSTNode, change: Change) -> None:
        """Apply ``change`` to the node once everything below it has been rewritten."""
        self._claim(node)
        self.edits.change(node, change)

    def replace(self, node: cst.CSTNode, new: cst.CSTNode | str) -> None:
        """Put another expression in the node's place (text is parsed with the file's newline and indent)."""
        expression = self.edits.expression(new) if isinstance(new, str) else new
        self.change(node, lambda _: expression)

    def remove(self, statement: cst.CSTNode) -> None:
        """Drop a statement (a line, or one small statement of a line); its comments stay."""
        inside = statement.body if isinstance(statement, cst.SimpleStatementLine) else [statement]
        self.keep_comments(statement, *inside)
        self._claim(statement)
        self.edits.remove(statement)

    def keep_comments(self, node: cst.CSTNode, *going: cst.CSTNode) -> None:
        """Comments inside ``going``, a part of the statement of ``node``, move above that statement."""
        found = comments(*going)
        if found:
            statement = self.statement(node)
            self._claim(statement)
            self.edits.keep_comments(statement, found)

    def mark(self, node: cst.CSTNode, code: str, message: str, help: str) -> None:  # noqa: A002
        """Leave a marker above the statement that holds the node, unless a comment there ignores the code."""
        line, _ = self.position(node)
        if any(comment.ignores(code) and line in (comment.line, comment.target) for comment in self._comments):
            return
        lines = (f"# TODO(ds-migrate {code}): {message}", f"#     {help}")
        encoding = self.module.encoding
        statement = self.statement(node)
        self._claim(statement)
        self.edits.keep_comments(
            statement, [text.encode(encoding, "backslashreplace").decode(encoding) for text in lines]
        )

    @cached_property
    def _comments(self) -> tuple[Comment, ...]:
        return comments_in(self.data)

    def before(self, statement: cst.BaseStatement, code: str, above_comments: bool = False) -> None:
        self._claim(statement)
        self.edits.before(statement, code, above_comments)

    def after(self, statement: cst.BaseStatement, code: str) -> None:
        self._claim(statement)
        self.edits.after(statement, code)

    def expand(self, small: cst.BaseSmallStatement, code: str) -> None:
        """Put whole statements in the place of one small statement."""
        line = self.parent(small)
        assert isinstance(line, (cst.SimpleStatementLine, cst.SimpleStatementSuite))
        self._claim(small)
        self.edits.expand(line, small, code)
