"""Variables that the handlers of signals and threads set: they run at another moment on each rank."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, Value, of_kind
from ds_migrate.syntax.nodes import argument, receiver, targets
from ds_migrate.syntax.source import SourceFile

_STARTS = {"signal.signal": "handler", "threading.Thread": "target"}  # the second argument
_DEPTH = 4  # of calls from a thread to the loop that it runs


def set_by_interruptions(file: SourceFile, flow: Flow) -> Iterator[cst.BaseExpression]:
    """Yield what such functions in a file assign to, and the objects whose methods they call: ``stop.set()``."""
    functions = interrupting_functions(flow)
    for function in file.nodes(cst.FunctionDef) if functions else ():
        if id(function) not in functions:
            continue
        for line in file.nodes(cst.Assign, cst.AugAssign, below=function.body):
            yield from targets(line)
        for call in file.nodes(cst.Call, below=function.body):
            if isinstance(call.func, cst.Attribute) and isinstance(file.parent(call), cst.Expr):
                yield call.func.value


def interrupting_functions(flow: Flow) -> frozenset[int]:
    """Return the functions that interrupt, by identity; one in which a thread trains is what others interrupt."""
    return flow.once(_functions)


def _functions(flow: Flow) -> frozenset[int]:
    found = set[int]()
    for file in flow.files.values():
        for call in file.nodes(cst.Call):
            given = _started(call, file, flow)
            called = flow.values(given, file) if given is not None else frozenset()
            for value in of_kind(called, Kind.FUNCTION, Kind.METHOD):
                if not _trains(value, flow):
                    found.add(value.key)
    return frozenset(found)


def _started(call: cst.Call, file: SourceFile, flow: Flow) -> cst.BaseExpression | None:
    """Return the function that a call has run at another moment."""
    names = (value.name for value in of_kind(flow.values(call.func, file), Kind.EXTERNAL) if value.name in _STARTS)
    name = next(names, None)
    given = argument(call, 1, _STARTS[name]) if name is not None else None
    return given.value if given is not None else None


def _trains(function: Value, flow: Flow) -> bool:
    """Return whether a function has a backward pass, or calls one that does."""
    todo, seen = [function], {function}
    for value in todo:  # grows
        calls: list[cst.Call] = flow.file(value).nodes(cst.Call, below=flow.node(value))
        if any(receiver(call, "backward") is not None for call in calls):
            return True
        for call in calls:
            new = of_kind(flow.values(call.func, flow.file(value)), Kind.FUNCTION, Kind.METHOD) - seen
            seen |= new
            todo += flow.in_order(new)
    return False
