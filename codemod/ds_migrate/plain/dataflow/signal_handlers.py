"""Variables that the handlers of signals set: a signal comes to each rank at another moment, or to one alone."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.syntax.nodes import argument, targets
from ds_migrate.syntax.source import SourceFile


def set_by_signals(file: SourceFile, flow: Flow) -> Iterator[cst.BaseExpression]:
    """Yield what the handlers in a file assign to, and the objects whose methods they call: ``stop.set()``."""
    handlers = flow.once("handlers of signals", lambda: frozenset(_handlers(flow)))
    for function in file.nodes(cst.FunctionDef) if handlers else ():
        if id(function) not in handlers:
            continue
        for line in file.nodes(cst.Assign, cst.AugAssign, below=function.body):
            yield from targets(line)
        for call in file.nodes(cst.Call, below=function.body):
            if isinstance(call.func, cst.Attribute) and isinstance(file.parent(call), cst.Expr):
                yield call.func.value


def _handlers(flow: Flow) -> Iterator[int]:
    """Yield the functions that handle signals, by identity."""
    for file in flow.files.values():
        for call in file.nodes(cst.Call):
            given = argument(call, 1, "handler") if flow.is_call_of(call, file, ("signal.signal",)) else None
            called = flow.values(given.value, file) if given is not None else frozenset()
            yield from (value.key for value in of_kind(called, Kind.FUNCTION, Kind.METHOD))
