"""Functions of a program that are read as attributes."""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.syntax.nodes import dotted
from ds_migrate.syntax.source import SourceFile

_Functions = list[tuple[SourceFile, cst.FunctionDef]]


def properties_by_name(flow: Flow) -> Mapping[str, _Functions]:
    """Return the properties of a program's classes, by name: objects are not distinguished."""
    return flow.once(_properties)


def _properties(flow: Flow) -> dict[str, _Functions]:
    found: dict[str, _Functions] = {}
    for file in flow.files.values():
        for function in file.nodes(cst.FunctionDef) if b"property" in file.data else ():
            if any((dotted(d.decorator) or "").endswith("property") for d in function.decorators):
                found.setdefault(function.name.value, []).append((file, function))
    return found
