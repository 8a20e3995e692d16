"""Expressions that are paths of files, as far as the text of a program shows it."""

from __future__ import annotations

import re

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.syntax.nodes import called_name, dotted, walk
from ds_migrate.syntax.source import SourceFile

_PATH = re.compile(r"[./\\]")
_MAKERS = frozenset({"join", "Path", "joinpath"})
# Calls that give a path for a path.
_KEEPS = frozenset({"str", "fspath", "abspath", "realpath", "expanduser", "resolve", "absolute", "as_posix"})
_CHANGES = frozenset({"with_suffix", "with_name", "with_stem"})
# What only an object of pathlib has.
_OF_PATHS = frozenset(
    {"mkdir", "stem", "iterdir", "joinpath", "is_file", "is_dir", "read_text", "write_text", "read_bytes",
     "write_bytes"} | _CHANGES
)  # fmt: skip
_DEPTH = 4


class PathTexts:
    """The expressions of a program that are paths: by their text, or that of what a name or a parameter has."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._used: dict[int, frozenset[str]] = {}

    def is_path(self, node: cst.BaseExpression, file: SourceFile, depth: int = _DEPTH) -> bool:
        """Return whether an expression is the text of a path, or an object of ``pathlib``."""
        texts = [part for part in walk(node) if isinstance(part, (cst.SimpleString, cst.FormattedStringText))]
        values = [t.value if isinstance(t, cst.FormattedStringText) else str(t.evaluated_value) for t in texts]
        is_text = isinstance(node, (cst.SimpleString, cst.FormattedString, cst.BinaryOperation, cst.ConcatenatedString))
        if is_text and any(map(_PATH.search, values)):
            return True
        if isinstance(node, cst.Call):
            name = called_name(node)
            if name == "format" and isinstance(node.func, cst.Attribute):
                return self.is_path(node.func.value, file, depth)
            of = [arg.value for arg in node.args]
            if name in _KEEPS and not of and isinstance(node.func, cst.Attribute):
                of = [node.func.value]
            is_kept = name in _KEEPS and depth > 0 and any(self.is_path(part, file, depth - 1) for part in of)
            return is_kept or name in _MAKERS | _CHANGES
        return self.is_joined(node, file, depth) or self._is_given(node, file, depth) or self._is_used(node, file)

    def is_joined(self, node: cst.BaseExpression, file: SourceFile, depth: int = _DEPTH) -> bool:
        """Return whether an expression is made by an operator of ``pathlib``: ``folder / "name"``."""
        if isinstance(node, cst.BinaryOperation):
            is_text = any(isinstance(part, (cst.SimpleString, cst.FormattedString)) for part in walk(node.right))
            return isinstance(node.operator, cst.Divide) and (is_text or self._is_used(node.left, file))
        values = self._flow.scopes(file).assigned(node) if isinstance(node, cst.Name) and depth else ()
        return any(self.is_joined(value, file, depth - 1) for value in values)

    def _is_given(self, node: cst.BaseExpression, file: SourceFile, depth: int) -> bool:
        """Return whether a name is set to a path, or is a parameter that calls give one."""
        if not isinstance(node, cst.Name) or depth == 0:
            return False
        return any(self.is_path(value, home, depth - 1) for value, home in self._flow.callers.sources(node, file))

    def _is_used(self, node: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether a file uses a name as a path elsewhere: ``args.output.parent.mkdir()``."""
        if id(file) not in self._used:
            owners = (part.value for part in file.nodes(cst.Attribute) if part.attr.value in _OF_PATHS)
            parts = (o.value if isinstance(o, cst.Attribute) and o.attr.value == "parent" else o for o in owners)
            self._used[id(file)] = frozenset(filter(None, map(dotted, parts)))
        return dotted(node) in self._used[id(file)]
