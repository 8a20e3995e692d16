"""Paths that a dataset makes for the sample that it gives: each rank has those of the samples that it draws."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.calls.callers import Callers
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.scopes import is_label
from ds_migrate.syntax.nodes import parameters
from ds_migrate.syntax.source import SourceFile

_DEPTH = 6


class ItemNames:
    """The paths of a program that are made of the index that ``__getitem__()`` takes."""

    def __init__(self, flow: Flow, callers: Callers) -> None:
        self._flow = flow
        self._callers = callers
        self._is_used = any(b"def __getitem__" in file.data for file in flow.files.values())

    def are_in(self, node: cst.BaseExpression, file: SourceFile, depth: int = _DEPTH) -> bool:
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
        yield from self._callers.given(name, file)


def _is_index(name: cst.Name, file: SourceFile) -> bool:
    """Return whether a name is the index that a dataset's ``__getitem__()`` takes."""
    function = file.function(name)
    if function is None or function.name.value != "__getitem__":
        return False
    return any(parameter.name.value == name.value for parameter in parameters(function)[1:])
