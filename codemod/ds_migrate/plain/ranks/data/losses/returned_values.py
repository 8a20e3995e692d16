"""Values that calls return: of functions of the program, and of the forward passes of its classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, Value, of_kind
from ds_migrate.syntax.branches import tests_around
from ds_migrate.syntax.nodes import dotted, elements, set_values, targets, without_index
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
            lines = [line for line in home.nodes(cst.Return, below=function) if home.function(line) is function]
            trains = [line for line in lines if not _is_of_evaluation(line, lines, home)]
            yield from ((home, line.value) for line in trains or lines if line.value is not None)


def set_to(name: cst.Name, file: SourceFile, flow: Flow) -> Iterator[tuple[SourceFile, cst.BaseExpression]]:
    """Yield what a name, or an item of it, is set to or changed by; of a call that gives several, what it returns."""
    for line in flow.scopes(file).nodes(name, cst.Assign, cst.AnnAssign, cst.AugAssign):
        for target, value in set_values(line):
            if dotted(without_index(target)) == name.value:
                given = line.value if value is None else value
                index = index_in(line, name.value)
                returned = returned_values(given, file, flow) if value is None and isinstance(given, cst.Call) else ()
                yield from [(home, item_of(one, index)) for home, one in returned] or [(file, given)]


def _is_of_evaluation(line: cst.Return, lines: Sequence[cst.Return], file: SourceFile) -> bool:
    """Return whether a module returns this where it does not train: under such a condition, or behind one."""
    if any(_asks_to_train(test) not in (None, holds) for test, holds in tests_around(file, line)):
        return True
    for other in lines:
        block = file.parent(file.statement(other))
        around = file.parent(block) if block is not None else None
        is_inside = any(outer is around for outer in file.ancestors(line))
        is_behind = not is_inside and file.position(other) < file.position(line)
        if is_behind and isinstance(around, cst.If) and around.body is block and _asks_to_train(around.test):
            return True
    return False


def _asks_to_train(test: cst.BaseExpression) -> bool | None:
    """Return whether a test holds for a module that trains; None for another test."""
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return False if dotted(test.expression) == "self.training" else None
    return True if dotted(test) == "self.training" else None


def index_in(line: cst.Assign | cst.AugAssign, name: str) -> int | None:
    """Return the index that a name has in a tuple of names which a line sets."""
    found = ([dotted(each) for each in elements(target)] for target in targets(line) if isinstance(target, cst.Tuple))
    return next((names.index(name) for names in found if name in names), None)


def item_of(value: cst.BaseExpression, index: int | None) -> cst.BaseExpression:
    """Return the element of a tuple at an index; what is no tuple as a whole."""
    if isinstance(value, cst.Tuple) and index is not None and index < len(value.elements):
        return value.elements[index].value
    return value
