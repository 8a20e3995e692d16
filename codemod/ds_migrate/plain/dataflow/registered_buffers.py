"""Buffers that modules register by name."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.syntax.nodes import argument
from ds_migrate.syntax.source import SourceFile


def registered_buffers(file: SourceFile) -> Iterator[tuple[cst.Call, str]]:
    """Yield the calls of ``register_buffer()`` in a file, with the names of the buffers."""
    for node in file.attributes_by_name.get("register_buffer", ()):
        call = file.parent(node)
        name = argument(call, 0, "name") if isinstance(call, cst.Call) else None
        if isinstance(call, cst.Call) and name is not None and isinstance(name.value, cst.SimpleString):
            yield call, str(name.value.evaluated_value)
