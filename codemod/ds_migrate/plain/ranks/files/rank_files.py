"""Files of which each rank has another one, which it writes, reads and removes alone.

These are temporary files. Where the program starts the ranks itself, they are also those whose names have the number of
the rank, or are those of the samples of its share.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.calls.callers import Callers
from ds_migrate.plain.dataflow.calls.idle_functions import is_called
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.torch_names import INIT
from ds_migrate.plain.ranks.files.sample_names import names_of_all_loaders
from ds_migrate.syntax.nodes import called_name, walk
from ds_migrate.syntax.source import SourceFile

_MAKERS = ("tempfile.NamedTemporaryFile", "tempfile.mkstemp", "tempfile.TemporaryFile", "tempfile.SpooledTemporaryFile")
_KEEPS = frozenset({"str", "fspath", "Path"})
_MAKES_TEXT = frozenset({"format", "join", "joinpath"})
_RANK = re.compile(r"(get_|[a-z]+_)?rank")
_DEPTH = 4


class RankFiles:
    """The files of a program that are of one rank, and the names that it has for them."""

    def __init__(self, flow: Flow, callers: Callers) -> None:
        self._flow = flow
        self._callers = callers
        self._counts_ranks = is_called(INIT, flow)
        self._is_used = self._counts_ranks or any(b"tempfile" in file.data for file in flow.files.values())

    def is_path(self, node: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether an expression is the path of such a file."""
        is_named = self._counts_ranks and names_of_all_loaders(self._flow, self._callers).are_in(node, file)
        return is_named or self.is_one(node, file)

    def is_one(self, node: cst.BaseExpression, file: SourceFile, depth: int = _DEPTH) -> bool:
        """Return whether an expression is such a file, or its path."""
        if not self._is_used or depth == 0:
            return False
        if self._counts_ranks and _is_text_with_rank(node):
            return True
        if isinstance(node, cst.IfExp):
            return self.is_one(node.body, file, depth - 1) or self.is_one(node.orelse, file, depth - 1)
        if isinstance(node, cst.FormattedString):
            parts = (p.expression for p in node.parts if isinstance(p, cst.FormattedStringExpression))
            return any(self.is_one(part, file, depth - 1) for part in parts)
        if isinstance(node, cst.Attribute):
            return node.attr.value == "name" and self.is_one(node.value, file, depth - 1)
        if isinstance(node, cst.Call):
            is_kept = called_name(node).rpartition(".")[2] in _KEEPS and len(node.args) == 1
            return self._flow.is_call_of(node, file, _MAKERS) or (
                is_kept and self.is_one(node.args[0].value, file, depth - 1)
            )
        return isinstance(node, cst.Name) and any(
            self.is_one(value, home, depth - 1) for value, home in self._values(node, file)
        )

    def _values(self, name: cst.Name, file: SourceFile) -> Iterator[tuple[cst.BaseExpression, SourceFile]]:
        """Yield what a name is set to, by ``with`` or with others in a line too, and what calls give for it."""
        scopes = self._flow.scopes(file)
        variable = scopes.variable(name.value, name)
        for node in scopes.bindings.get(name.value, ()):
            line = file.parent(node)
            made = line.value if isinstance(line, cst.Assign) else line.item if isinstance(line, cst.WithItem) else None
            if made is not None and scopes.variable(name.value, node) == variable:
                yield made, file
        yield from self._callers.given(name, file)


def _is_text_with_rank(node: cst.BaseExpression) -> bool:
    """Return whether a text, or a path, is made with the number of the rank: ``f"log_{rank}.txt"``."""
    parts = list(walk(node)) if isinstance(node, (cst.FormattedString, cst.BinaryOperation, cst.Call)) else []
    has_text = any(isinstance(part, (cst.SimpleString, cst.FormattedString)) for part in parts)
    is_text = not isinstance(node, cst.Call) or called_name(node).rpartition(".")[2] in _MAKES_TEXT
    names = (part for part in parts if isinstance(part, (cst.Name, cst.SimpleString)))
    return is_text and has_text and any(_RANK.fullmatch(n.value.strip("\"'").lower()) for n in names)
