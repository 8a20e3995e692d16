"""Files of which each rank has another one, which it writes, reads and removes alone.

These are temporary files, those in a temporary folder that ranks do not share, and those that a dataset keeps of the
sample that it gives.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.branches.dead_branches import is_test_file
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.ranks.files.sample_names import ItemNames
from ds_migrate.plain.ranks.rank_guards import is_guarded
from ds_migrate.plain.ranks.rank_zero.commands import RUNS
from ds_migrate.syntax.nodes import called_name, dotted, set_values
from ds_migrate.syntax.source import SourceFile

_MAKERS = ("tempfile.NamedTemporaryFile", "tempfile.mkstemp", "tempfile.TemporaryFile", "tempfile.SpooledTemporaryFile")
FOLDER = "tempfile.TemporaryDirectory"
_JOINS = frozenset({"join", "Path"})
_KEEPS = frozenset({"str", "fspath", "abspath", "realpath", "enter_context"})
_OF_PATHS = frozenset({"joinpath", "resolve", "absolute", "as_posix", "with_suffix", "with_name"})
_DEPTH = 6


class RankFiles:
    """The files of a program that are of one rank, and the names that it has for them."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._of_items = ItemNames(flow)
        self._is_used = any(b"tempfile" in file.data for file in flow.files.values())

    def is_path(self, node: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether an expression is the path of such a file."""
        return self._of_items.are_in(node, file) or self.is_one(node, file)

    def is_one(self, node: cst.BaseExpression, file: SourceFile, depth: int = _DEPTH) -> bool:
        """Return whether an expression is such a file, or its path."""
        if not self._is_used or depth == 0:
            return False
        if isinstance(node, cst.IfExp):
            return self.is_one(node.body, file, depth) or self.is_one(node.orelse, file, depth)
        if isinstance(node, cst.FormattedString):
            parts = (p.expression for p in node.parts if isinstance(p, cst.FormattedStringExpression))
            return any(self.is_one(part, file, depth) for part in parts)
        if isinstance(node, cst.BinaryOperation):
            return self.is_one(node.left, file, depth)
        if isinstance(node, cst.Call):
            return self._is_made(node, file, depth)
        if isinstance(node, cst.Attribute) and node.attr.value == "name":
            return self.is_one(node.value, file, depth)
        if isinstance(node, cst.Attribute):
            return any(self.is_one(value, file, depth - 1) for value in self._flow.scopes(file).assigned(node))
        return isinstance(node, cst.Name) and (
            any(self.is_one(value, file, depth - 1) for value in self._set_to(node, file))
            or self._is_given(node, file, depth)
        )

    def _is_given(self, name: cst.Name, file: SourceFile, depth: int) -> bool:
        """Return whether a name is a parameter for which all calls, but those of tests, give such a file."""
        given = [(value, home) for value, home in self._flow.callers.given(name, file) if not is_test_file(home)]
        return bool(given) and all(self.is_one(value, home, depth - 1) for value, home in given)

    def _is_made(self, call: cst.Call, file: SourceFile, depth: int) -> bool:
        """Return whether a call makes such a file or folder, or a path of one."""
        if self._flow.is_call_of(call, file, (FOLDER,)):
            return is_own_folder(call, file, self._flow)
        name = called_name(call).rpartition(".")[2]
        if name in _OF_PATHS and isinstance(call.func, cst.Attribute):
            return self.is_one(call.func.value, file, depth)
        is_path = bool(call.args) and (name in _JOINS or (name in _KEEPS and len(call.args) == 1))
        return self._flow.is_call_of(call, file, _MAKERS) or (is_path and self.is_one(call.args[0].value, file, depth))

    def _set_to(self, name: cst.Name, file: SourceFile) -> Iterator[cst.BaseExpression]:
        """Yield what a name is set to, by ``with`` or with others in a line too."""
        scopes = self._flow.scopes(file)
        variable = scopes.variable(name.value, name)
        for node in scopes.bindings.get(name.value, ()):
            line = file.parent(node)
            if scopes.variable(name.value, node) != variable:
                continue
            if isinstance(line, cst.WithItem):
                yield line.item
            elif isinstance(line, cst.Assign):
                paired = (value for target, value in set_values(line) if dotted(target) == name.value)
                yield next(paired, None) or line.value


def is_own_folder(made: cst.Call, file: SourceFile, flow: Flow) -> bool:
    """Return whether ranks do not share a temporary folder: no ``with`` makes it, or all run a command in that."""
    item = file.parent(made)
    block = file.parent(item) if isinstance(item, cst.WithItem) else None
    calls = file.nodes(cst.Call, below=block.body) if isinstance(block, cst.With) else ()
    return block is None or any(flow.is_call_of(call, file, RUNS) and not is_guarded(call, file) for call in calls)
