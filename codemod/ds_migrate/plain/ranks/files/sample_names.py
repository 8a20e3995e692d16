"""Paths of files that the samples of a batch name, of which each rank has those of its share, or their index does."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.rank_values import RankValues
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.scopes import is_label, names_in
from ds_migrate.syntax.nodes import called_name, operands, parameters
from ds_migrate.syntax.source import SourceFile

_DEPTH = 8
# Calls that make a path of texts, or another text of one.
_PATHS = frozenset(
    {"join", "Path", "PurePath", "joinpath", "with_suffix", "with_name", "basename", "splitext", "split", "rsplit",
     "replace", "strip", "format", "str", "int", "item", "lower", "zfill", "stem"}
)  # fmt: skip
_NAMED = frozenset({"items", "keys"})
_INDEX_DEPTH = 6


class SampleNames:
    """The paths of a program that samples name.

    Args:
        values: those that differ by rank as the data does.
    """

    def __init__(self, flow: Flow, values: RankValues) -> None:
        self._flow = flow
        self._values = values

    def are_in(self, node: cst.BaseExpression, file: SourceFile, depth: int = _DEPTH) -> bool:
        """Return whether a path has a text in it that the loop over a share gives, and no number that a model gives."""
        if depth == 0 or not self._values.differs(node, file):
            return False
        return any(self.are_in(part, home, depth - 1) for part, home in self._parts(node, file)) or (
            isinstance(node, cst.Name) and self._is_of_loop(node, file)
        )

    def _parts(self, node: cst.BaseExpression, file: SourceFile) -> Iterator[tuple[cst.BaseExpression, SourceFile]]:
        """Yield the expressions that a path is made of."""
        if isinstance(node, cst.FormattedString):
            yield from ((p.expression, file) for p in node.parts if isinstance(p, cst.FormattedStringExpression))
        elif isinstance(node, cst.BinaryOperation):
            yield from ((node.left, file), (node.right, file))
        elif isinstance(node, (cst.Tuple, cst.List)):
            yield from ((element.value, file) for element in node.elements)
        elif isinstance(node, (cst.Subscript, cst.Attribute)):
            yield node.value, file
        elif isinstance(node, cst.Call) and called_name(node) in _PATHS:
            yield from ((part, file) for part in operands(node))
        elif isinstance(node, cst.Name):
            yield from self._flow.callers.sources(node, file)

    def _is_of_loop(self, name: cst.Name, file: SourceFile) -> bool:
        """Return whether a loop over something that differs by rank sets a name."""
        loops = [outer for outer in file.ancestors(name) if isinstance(outer, (cst.For, cst.CompFor))]
        around = [loop for loop in loops if name.value in names_in(loop.target)]
        over = around[0].iter if around else None
        if isinstance(over, cst.Call) and called_name(over) in _NAMED:  # the names of numbers
            return False
        is_share = over is not None and self._values.are_shares(self._flow.values(over, file))
        return is_share or (over is not None and self._values.differs(over, file))


class ItemNames:
    """The paths of a program that are made of the index that ``__getitem__()`` takes."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._is_used = any(b"def __getitem__" in file.data for file in flow.files.values())

    def are_in(self, node: cst.BaseExpression, file: SourceFile, depth: int = _INDEX_DEPTH) -> bool:
        """Return whether a path is made of such an index."""
        if not self._is_used or depth == 0:
            return False
        names = [name for name in file.nodes(cst.Name, below=node) if not is_label(name, file)]
        return any(_is_index(name, file) for name in names) or any(
            self.are_in(value, home, depth - 1) for name in names for value, home in self._values(name, file)
        )

    def _values(self, name: cst.Name, file: SourceFile) -> Iterator[tuple[cst.BaseExpression, SourceFile]]:
        """Yield what a name is set to, alone or with others in a line, and what calls give for it."""
        scopes = self._flow.scopes(file)
        variable = scopes.variable(name.value, name)
        for node in scopes.bindings.get(name.value, ()):
            around = (node, *file.ancestors(node))
            target = next((outer for outer in around if isinstance(outer, cst.AssignTarget)), None)
            line = file.parent(target) if target is not None else None
            if isinstance(line, cst.Assign) and scopes.variable(name.value, node) == variable:
                yield line.value, file
        yield from self._flow.callers.given(name, file)


def _is_index(name: cst.Name, file: SourceFile) -> bool:
    """Return whether a name is the index that a dataset's ``__getitem__()`` takes."""
    function = file.function(name)
    if function is None or function.name.value != "__getitem__":
        return False
    return any(parameter.name.value == name.value for parameter in parameters(function)[1:])
