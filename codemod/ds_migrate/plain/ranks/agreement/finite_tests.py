"""Tests for NaN and infinite numbers, which another rank's share of the data may give as well."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.scopes import names_in
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.syntax.nodes import dotted, last_name, parameters, set_values, walk
from ds_migrate.syntax.source import SourceFile

FINITE = frozenset({"isnan", "isinf", "isfinite"})
_NUMBERS = frozenset({"inf", "nan"})
_DEPTH = 3  # names of names


def asks_for_finite(test: cst.BaseExpression, file: SourceFile, flow: Flow, depth: int = _DEPTH) -> bool:
    """Return whether a condition is true or false by a test for NaN or infinity: here, by a name, or in a function."""
    if isinstance(test, cst.UnaryOperation):
        return asks_for_finite(test.expression, file, flow, depth)
    if isinstance(test, cst.BooleanOperation):
        return any(asks_for_finite(part, file, flow, depth) for part in (test.left, test.right))
    if any(_is_finite_test(node) for node in walk(test)):
        return True
    if isinstance(test, cst.Name) and depth:
        return any(asks_for_finite(value, file, flow, depth - 1) for value in _assigned(test, file, flow))
    return isinstance(test, cst.Call) and _tests_parameter(test, file, flow)


def _is_finite_test(node: cst.CSTNode) -> bool:
    """Return whether a node is ``isnan(x)``, ``x != x`` or ``x == float("inf")``."""
    if isinstance(node, cst.Call):
        return last_name(node.func) in FINITE or (
            isinstance(node.func, cst.Attribute) and node.func.attr.value in FINITE
        )
    if not isinstance(node, cst.Comparison) or len(node.comparisons) != 1:
        return False
    (target,) = node.comparisons
    if not isinstance(target.operator, (cst.Equal, cst.NotEqual)):
        return False
    return node.left.deep_equals(target.comparator) or any(map(_is_infinite, (node.left, target.comparator)))


def _is_infinite(node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.UnaryOperation):
        node = node.expression
    if isinstance(node, cst.Call) and dotted(node.func) == "float" and len(node.args) == 1:
        text = node.args[0].value
        return isinstance(text, cst.SimpleString) and str(text.evaluated_value).lower().lstrip("+-") in _NUMBERS
    return isinstance(node, cst.Attribute) and node.attr.value in _NUMBERS


def _assigned(name: cst.Name, file: SourceFile, flow: Flow) -> Iterator[cst.BaseExpression]:
    for node in flow.scopes(file).nodes(name, cst.Assign, cst.AnnAssign):
        for target, value in set_values(node):
            if name.value in names_in(target) and (value or node.value) is not None:
                yield value or node.value


def _tests_parameter(call: cst.Call, file: SourceFile, flow: Flow) -> bool:
    """Return whether a function of the program tests its arguments."""
    for value in of_kind(flow.values(call.func, file), Kind.FUNCTION, Kind.METHOD):
        function = flow.node(value)
        if isinstance(function, cst.FunctionDef):
            names = {parameter.name.value for parameter in parameters(function)}
            found = [node for node in walk(function.body) if _is_finite_test(node)]
            if any(isinstance(part, cst.Name) and part.value in names for node in found for part in walk(node)):
                return True
    return False
