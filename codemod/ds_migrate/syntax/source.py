"""One parsed file: its tree, its parents, its positions, and the edits that rules claim."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import libcst as cst

from ds_migrate.findings import ENCODING_HELP, Finding, Severity
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.claims import Change, Text
from ds_migrate.syntax.codegen import ModuleText
from ds_migrate.syntax.comments import comments
from ds_migrate.syntax.edits import Edits
from ds_migrate.syntax.imports import Imports
from ds_migrate.syntax.joined_lines import JoinedLines, LineJoiner
from ds_migrate.syntax.line_folding import WIDTH, fold
from ds_migrate.syntax.names import Names
from ds_migrate.syntax.node_index import NodeIndex
from ds_migrate.syntax.nodes import code, dotted, targets

# libcst recurses once per nesting level; a 500-term sum needs more than Python's default.
_RECURSION_LIMIT = 20_000

# A bracket whose content stands on a separate line, without a comma behind it: wrapped because it was too long.
_WRAPPED = re.compile(r"^( *)(\S.*[(\[{])\r?\n +(\S.*[^,\s])\r?\n\1([)\]}].*?)\r?$", re.MULTILINE)


class SourceError(Exception):
    """The file cannot be worked on. ``finding`` has the reason; its line counts from 1 and is 0 when unknown."""

    def __init__(self, code: str, message: str, line: int = 0, column: int = 0, advice: str | None = None) -> None:
        super().__init__(message)
        self.finding = Finding(code, Severity.ERROR, line, message, column, help=advice)


def _parsed(data: bytes) -> cst.Module:
    """Return the tree of a file. New blocks are indented as its first one, but by four where that is an odd one."""
    module = cst.parse_module(data)
    width = len(module.default_indent)
    if width % 2 and not module.default_indent.strip(" "):
        of_width, of_four = (len(re.findall(rb"(?m)^ {%d}\S" % number, data)) for number in (width, 4))
        if of_four > of_width:
            kept = module.visit(_WithIndents(module.default_indent))
            assert isinstance(kept, cst.Module)
            return kept.with_changes(default_indent="    ")
    return module


class _WithIndents(cst.CSTTransformer):
    """Writes the default indent to the blocks that have it."""

    def __init__(self, indent: str) -> None:
        super().__init__()
        self._indent = indent

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        is_default = isinstance(original_node, cst.IndentedBlock) and original_node.indent is None
        return updated_node.with_changes(indent=self._indent) if is_default else updated_node


class SourceFile:
    """A parsed Python file.

    Raises ``SourceError`` when it does not decode, does not parse, or when libcst cannot print it back byte for
    byte (a few valid files: ``except OSError :`` loses its space), because then untouched text could not be promised.
    ``accepted``: line and code of the findings that a user accepts, which leave no marker; line 0 is the whole file.
    ``lines``: for each line of the text the number that is reported for it, where it is not the text that users have.
    ``reported_lines``: likewise, where positions stay those of the text, and only ``reported_position()`` is of theirs.
    """

    def __init__(
        self,
        path: Path,
        data: bytes,
        accepted: Collection[tuple[int, str]] = (),
        lines: Sequence[int] = (),
        reported_lines: Sequence[int] = (),
    ) -> None:
        self.path = path
        self.data = data
        self._accepted = accepted
        self._lines = lines
        self._reported_lines = reported_lines
        sys.setrecursionlimit(max(sys.getrecursionlimit(), _RECURSION_LIMIT))
        try:
            self.module = _parsed(data)
        except cst.ParserSyntaxError as error:
            # Python has parsed it before. The error's line and column can be those of another token.
            message = f"libcst, which writes the conversion, cannot parse this file, though Python can: {error.message}"
            raise SourceError(Code.UNREADABLE_SOURCE, message) from error
        except (UnicodeDecodeError, SyntaxError) as error:
            message = f"is not text in its encoding: {error}"
            raise SourceError(Code.UNREADABLE_SOURCE, message, advice=ENCODING_HELP) from error
        except (LookupError, RecursionError) as error:
            raise SourceError(Code.UNREADABLE_SOURCE, f"cannot be read as Python: {error}") from error
        self._text = ModuleText(self.module)
        try:
            is_lossless = self._encode(self.text) == data
        except UnicodeError as error:  # some codecs only decode
            message = f"its encoding, {self.module.encoding}, cannot write this file back: {error}"
            raise SourceError(Code.NOT_LOSSLESS, message) from error
        if not is_lossless:
            raise SourceError(Code.NOT_LOSSLESS, "libcst cannot print this file back byte for byte")
        self._joined = JoinedLines(self.module)
        self.module = self._joined.module
        self._index = NodeIndex(self.module)
        self.edits = Edits(self.module)
        self.left: frozenset[cst.CSTNode] = frozenset()
        self._left_names: frozenset[str] = frozenset()
        self._free: frozenset[cst.CSTNode] | None = None

    def close(self) -> None:
        """Let go of the tree. Edits refer to their file, so it would wait for a garbage collection otherwise."""
        vars(self).clear()

    def restart(self) -> None:
        """Take back every edit, import and new name."""
        self.edits = Edits(self.module)
        self.names.taken = self.names.used | set(self.names.bindings)
        vars(self).pop("imports", None)

    def leave(self, left: Collection[cst.CSTNode], names: Collection[str], free: Collection[cst.CSTNode]) -> None:
        """Leave statements of the module as they are: nothing is found in those ``left`` from now on, and an import of
        one of ``names`` stays. Only those that are ``free`` may change."""
        names_of_all = self.names  # made of all nodes, so that new names are new there too
        self.left, self._left_names, self._free = frozenset(left), frozenset(names), frozenset(free)
        self._index.hide(left)
        names_of_all.import_nodes = self.nodes(cst.Import, cst.ImportFrom)

    def stays(self, node: cst.Import | cst.ImportFrom) -> bool:
        """Return whether code that is left as it is uses what the import binds."""
        return not self._left_names.isdisjoint(Names([node], ()).bindings)

    def may_change(self, node: cst.CSTNode) -> bool:
        """Return whether the statement of the module that holds the node may change."""
        return self._free is None or not self._free.isdisjoint((node, *self.ancestors(node)))

    @property
    def text(self) -> str:
        """The file as it was parsed, decoded."""
        return self._text.text

    @property
    def statements(self) -> list[cst.SimpleStatementLine | cst.BaseCompoundStatement]:
        """The statements of the module, without those that are left as they are."""
        return [statement for statement in self.module.body if statement not in self.left]

    @cached_property
    def names(self) -> Names:
        return Names(self.nodes(cst.Import, cst.ImportFrom), self.nodes(cst.Name, cst.Attribute))

    @cached_property
    def imports(self) -> Imports:
        return Imports(self)

    def _encode(self, text: str) -> bytes:
        data = text.encode(self.module.encoding)
        if self.data.startswith(b"\xef\xbb\xbf") and not data.startswith(b"\xef\xbb\xbf"):
            data = b"\xef\xbb\xbf" + data
        return data

    def render(self) -> bytes:
        """Return the file with every edit applied."""
        if not self.edits:
            return self.data
        self.imports.write()
        has_comments = "#" in self.text
        if not self._joined.lines:
            return self._encode(self._text.rewritten(self.edits.apply(has_comments=has_comments)))
        joiner = LineJoiner(self._joined, lambda node: self._text.position(node)[1] - 1, self.width)
        rewritten = self.edits.apply(has_comments=has_comments, joiner=joiner)
        return self._encode(self._text.rewritten(joiner.restore(rewritten)))

    def position(self, node: cst.CSTNode) -> tuple[int, int]:
        """Return line and column of the node's first token, both from 1."""
        line, column = self._text.position(self._joined.origin(node))
        return (self._lines[line - 1] if self._lines else line), column

    def reported_position(self, node: cst.CSTNode) -> tuple[int, int]:
        """Return line and column of the node's first token as users have the file, both from 1."""
        line, column = self.position(node)
        return (self._reported_lines[line - 1] if self._reported_lines else line), column

    def number(self, node: cst.CSTNode) -> int:
        """Return the number of a node in source order: nodes that begin together differ, the outermost is first."""
        return self._index.number(node)

    def nodes(self, *kinds: type[cst.CSTNode], below: cst.CSTNode | None = None) -> list[Any]:
        """Return every node of exactly these classes in source order, of the file or of a part of it."""
        return self._index.below(self.module if below is None else below, kinds)

    @cached_property
    def width(self) -> int:
        """The columns that a line may have: those at which the file itself wraps heads and statements, else 120."""
        longest = max(map(len, self.text.splitlines()), default=0)
        width = next((w for w in (79, 88, 100) if longest <= w), WIDTH)
        bare = {"body": cst.SimpleStatementSuite([]), "leading_lines": [], "decorators": []}
        heads = [code(function.with_changes(**bare)).strip() for function in self.nodes(cst.FunctionDef)]
        joined = [
            len(" ".join(head.split()).replace("( ", "(").replace(", )", ")")) + 4 for head in heads if "\n" in head
        ]
        joined += [length for found in _WRAPPED.findall(self.text) if (length := sum(map(len, found))) <= WIDTH]
        return width if any(longest < length for length in joined) else WIDTH

    def spelled(self, *names: str, below: cst.CSTNode | None = None) -> list[Any]:
        """Return every name and attribute that is one of the dotted names, in source order, in the file or below."""
        return self._index.spelled(names, self.module if below is None else below)

    @cached_property
    def attributes_by_name(self) -> dict[str, list[cst.Attribute]]:
        """Every attribute by the name behind its last dot, in source order."""
        found: dict[str, list[cst.Attribute]] = {}
        for node in self.nodes(cst.Attribute):
            found.setdefault(node.attr.value, []).append(node)
        return found

    def values_of(self, names: set[str], scope: cst.CSTNode) -> list[cst.BaseExpression]:
        """Return everything that is assigned to one of the dotted names below ``scope``, in source order."""
        assignments = self.nodes(cst.Assign, cst.AnnAssign, cst.AugAssign, below=scope)
        return [node.value for node in assignments if any(dotted(t) in names for t in targets(node))]

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        return self._index.parent(node)

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yield the node's parent and so on up to the module."""
        return self._index.ancestors(node)

    def function(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        """Return the innermost function around the node."""
        return self._index.around(node, cst.FunctionDef)

    def around(self, node: cst.CSTNode, *kinds: type[cst.CSTNode]) -> Any:
        """Return the innermost node of one of these kinds around the node; None where there is none."""
        return next((outer for outer in self.ancestors(node) if isinstance(outer, kinds)), None)

    def returned(self, function: cst.CSTNode) -> list[cst.BaseExpression | None]:
        """Return what the lines of a function return itself, and not those of functions in it."""
        lines = self.nodes(cst.Return, below=function)
        return [line.value for line in lines if self.function(line) is function]

    def class_around(self, node: cst.CSTNode) -> cst.ClassDef | None:
        """Return the innermost class around the node."""
        return self._index.around(node, cst.ClassDef)

    def statement(self, node: cst.CSTNode) -> cst.BaseStatement:
        """Return the innermost statement that holds the node: a line, or the head of a compound statement."""
        for candidate in (node, *self.ancestors(node)):
            if isinstance(candidate, cst.BaseStatement):
                return candidate
        raise AssertionError("every expression is in a statement")

    def line_of(self, statement: cst.SimpleStatementLine) -> Sequence[cst.SimpleStatementLine]:
        """Return the statements that share the line of a statement in the file."""
        return self._joined.pieces_beside(statement)

    def statement_in(self, node: cst.CSTNode, function: cst.FunctionDef) -> cst.BaseStatement | None:
        """Return the statement directly in the function's body that holds the node; None when it is not inside."""
        inner: cst.CSTNode = node
        for outer in self.ancestors(node):
            if outer is function.body and isinstance(inner, cst.BaseStatement):
                return inner
            inner = outer
        return None

    # -- edits: each claims its node, so that the transform descends to it ---------------------------------------

    def checkpoint(self) -> Callable[[], None]:
        """Return a function that takes back every edit, import and new name claimed from now on."""
        undo_edits, undo_imports, taken = (
            self.edits.claims.checkpoint(),
            self.imports.checkpoint(),
            set(self.names.taken),
        )

        def undo() -> None:
            undo_edits()
            undo_imports()
            self.names.taken = set(taken)

        return undo

    def _claim(self, node: cst.CSTNode) -> None:
        self.edits.touch(node, self.ancestors(node))

    def change(self, node: cst.CSTNode, change: Change) -> None:
        """Apply ``change`` to the node once everything below it has been rewritten."""
        self._claim(node)
        self.edits.change(node, change)

    def replace(self, node: cst.CSTNode, new: cst.CSTNode | str) -> None:
        """Put another expression in the node's place (text is parsed with the file's newline and indent)."""
        around = next((outer for outer in self.ancestors(node) if isinstance(outer, cst.FormattedString)), None)
        if around is not None and isinstance(new, str) and around.quote == '"':
            new = new.replace('"', "'")  # before Python 3.12 its quotes are not for what is inside
        expression = self.edits.expression(new) if isinstance(new, str) else new
        self.change(node, lambda _: expression)

    def remove(self, statement: cst.CSTNode) -> None:
        """Drop a statement (a line, or one small statement of a line); its comments stay."""
        inside = statement.body if isinstance(statement, cst.SimpleStatementLine) else [statement]
        found = comments(*inside)
        if found:
            around = self.statement(statement)
            self._claim(around)
            self.edits.keep_comments(around, found)
        self._claim(statement)
        self.edits.remove(statement)

    def mark(self, node: cst.CSTNode, code: str, message: str, help: str) -> None:  # noqa: A002
        """Leave a marker above the statement that holds the node, unless a comment accepts the finding."""
        line, _ = self.position(node)
        if (line, code) in self._accepted or (0, code) in self._accepted:
            return
        lines = (f"# TODO(ds-migrate {code}): {message}", f"#     {help}")
        encoding = self.module.encoding
        statement = self.statement(node)
        self._claim(statement)
        self.edits.keep_comments(
            statement, [text.encode(encoding, "backslashreplace").decode(encoding) for text in lines]
        )

    def before(
        self,
        statement: cst.BaseStatement,
        code: str,
        above_comments: bool = False,
        instead_of: str = "",
        first: bool = False,
    ) -> None:
        self._claim(statement)
        folded = self._folded(statement, code)
        self.edits.before(statement, folded, above_comments, self._folded(statement, instead_of), first)

    def after(self, statement: cst.BaseStatement, code: str) -> None:
        self._claim(statement)
        self.edits.after(statement, self._folded(statement, code))

    def expand(self, small: cst.BaseSmallStatement, code: Text) -> None:
        """Put whole statements in the place of one small statement (they may be made of it as it is rewritten)."""
        line = self.parent(small)
        assert isinstance(line, (cst.SimpleStatementLine, cst.SimpleStatementSuite))
        self._claim(small)
        if isinstance(code, str):
            self.edits.expand(line, small, self._folded(line, code))
        else:
            self.edits.expand(line, small, lambda updated: self._folded(line, code(updated)))

    def _folded(self, beside: cst.CSTNode, code: str) -> str:
        outer, columns = self._joined.indentation(beside)
        return fold(code, self._text.position(outer)[1] - 1 + columns, self.width)
