"""Values that calls return: of functions of the program, and of the forward passes of its classes."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, Value, of_kind
from ds_migrate.syntax.nodes import dotted, elements, targets
from ds_migrate.syntax.source import SourceFile

_OBJECTS = (Kind.INSTANCE, Kind.MODULE)


def returned_values(call: cst.Call, file: SourceFile, flow: Flow) -> Iterator[tuple[SourceFile, cst.BaseExpression]]:
    """Yield the expressions that a function of the program, or the forward pass of a class of it, returns."""
    called = of_kind(flow.values(call.func, file), Kind.FUNCTION, Kind.METHOD, *_OBJECTS)
    for value in flow.in_order(called):
        owner = value.key if value.kind is Kind.INSTANCE else value.of
        method: Value | None = value
        if value.kind in _OBJECTS and owner:
            method = flow.classes.method(owner, "forward") or flow.classes.method(owner, "__call__")
        function = flow.node(method) if method is not None else None
        home = flow.file(method) if method is not None else file
        if isinstance(function, cst.FunctionDef):
            lines = home.nodes(cst.Return, below=function)
            yield from ((home, line.value) for line in lines if line.value is not None)


def index_in(line: cst.Assign | cst.AugAssign, name: str) -> int | None:
    """Return the index that a name has in a tuple of names which a line sets."""
    found = ([dotted(each) for each in elements(target)] for target in targets(line) if isinstance(target, cst.Tuple))
    return next((names.index(name) for names in found if name in names), None)


def item_of(value: cst.BaseExpression, index: int | None) -> cst.BaseExpression:
    """Return the element of a tuple at an index; what is no tuple as a whole."""
    if isinstance(value, cst.Tuple) and index is not None and index < len(value.elements):
        return value.elements[index].value
    return value
