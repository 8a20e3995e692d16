"""Calls of code that is in no file of the program."""

from __future__ import annotations

import builtins
import sys

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind
from ds_migrate.syntax.source import SourceFile

_DEPTH = 3  # of calls whose results have methods
_OF_PYTHON = sys.stdlib_module_names | set(dir(builtins))


def is_of_library(call: cst.Call, file: SourceFile, flow: Flow, depth: int = _DEPTH) -> bool:
    """Return whether a call is of a library beside Python's own, or of a method of what such a call has made."""
    found = flow.values(call.func, file)
    names = [value.name.partition(".")[0] for value in found if value.kind is Kind.EXTERNAL]
    if names:
        return len(names) == len(found) and not _OF_PYTHON.intersection(names)
    owners = flow.values(call.func.value, file) if isinstance(call.func, cst.Attribute) else ()
    made = [(flow.node(value), flow.file(value)) for value in owners if value.kind is Kind.OBJECT]
    makers = [(node, home) for node, home in made if isinstance(node, cst.Call)]
    is_made = bool(makers) and len(makers) == len(owners)
    return is_made and (not depth or all(is_of_library(*maker, flow, depth - 1) for maker in makers))
