"""Expressions that a name has its object from in other functions: arguments of calls, and items of what they return."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import NOTHING, Kind, of_kind
from ds_migrate.syntax.nodes import dotted, targets
from ds_migrate.syntax.source import SourceFile

Passed = tuple[SourceFile, cst.BaseExpression]


def passed_on(name: cst.Name, file: SourceFile, flow: Flow) -> list[Passed]:
    """Return what calls give for a parameter, or the items of returned tuples that a name is assigned.

    Nothing where one of them is unknown.
    """
    function = flow.scopes(file).function_of_parameter(name)
    if function is not None:
        given = [(at, flow.given(call, function, name.value, at)) for at, call in flow.callers.of(function)]
        found = [(at, arg.value) for at, arg in given if arg is not None and not arg.star]
        return found if len(found) == len(given) else []
    unpacked = [
        list(_returned(line.value, index, len(target.elements), file, flow))
        for line in flow.scopes(file).nodes(name, cst.Assign)
        for target in targets(line)
        if isinstance(target, (cst.Tuple, cst.List))
        for index, element in enumerate(target.elements)
        if dotted(element.value) == name.value
    ]
    return [passed for items in unpacked for passed in items] if all(unpacked) else []


def _returned(call: cst.BaseExpression, index: int, count: int, file: SourceFile, flow: Flow) -> Iterator[Passed]:
    """Yield the items that functions of the program return at one place of a tuple."""
    callees = flow.values(call.func, file) if isinstance(call, cst.Call) else NOTHING
    for value in flow.in_order(of_kind(callees, Kind.FUNCTION, Kind.METHOD)):
        other, function = flow.file(value), flow.node(value)
        for returned in other.returned(function):
            if isinstance(returned, cst.Tuple) and len(returned.elements) == count:
                yield other, returned.elements[index].value
