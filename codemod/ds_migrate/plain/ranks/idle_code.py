"""Code of helper files that never runs with a loop."""

from __future__ import annotations

from functools import cached_property

import libcst as cst

from ds_migrate.plain.dataflow.calls.callers import Callers
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.syntax.nodes import dotted_names
from ds_migrate.syntax.source import SourceFile


class IdleCode:
    """The functions without calls, and the scripts, of files that a program imports."""

    def __init__(self, flow: Flow, callers: Callers) -> None:
        self._flow = flow
        self._callers = callers

    def holds(self, node: cst.CSTNode, file: SourceFile) -> bool:
        """Return whether a node of a helper file never runs with the loop."""
        for outer in (node, *file.ancestors(node)):
            is_script = isinstance(outer, cst.If) and "__name__" in dotted_names(outer.test)
            is_global = file.parent(outer) is file.module
            if is_script or (isinstance(outer, cst.FunctionDef) and is_global and not self._is_used(outer)):
                return True
        return False

    def _is_used(self, function: cst.FunctionDef) -> bool:
        return bool(self._callers.of(function)) or function.name.value in self._names_used

    @cached_property
    def _names_used(self) -> set[str]:
        """The names that files of the program use beside those of functions that they define."""
        return {
            node.attr.value if isinstance(node, cst.Attribute) else node.value
            for file in self._flow.files.values() for node in file.nodes(cst.Name, cst.Attribute)
            if not isinstance(file.parent(node), (cst.FunctionDef, cst.ImportAlias))
        }  # fmt: skip
