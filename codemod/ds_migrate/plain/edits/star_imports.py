"""Modules that a file has from ``from utils import *``: its conversion uses them by these names."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind

_NEEDED = ("contextlib", "logging", "os")  # by what is written


def use_star_imports(flow: Flow) -> None:
    """Let files use the modules that star imports give them, in the place of imports beside these."""
    for file in flow.files.values():
        if not any(isinstance(line.names, cst.ImportStar) for line in file.nodes(cst.ImportFrom)):
            continue
        for name in _NEEDED:
            used = next((node for node in file.nodes(cst.Name) if node.value == name), None)
            values = flow.values(used, file) if used is not None else frozenset()
            if name not in file.imports.bindings and {(v.kind, v.name) for v in values} == {(Kind.EXTERNAL, name)}:
                file.imports.bindings[name] = name
