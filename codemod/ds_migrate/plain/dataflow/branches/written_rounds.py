"""Rounds of loops over what is written out: ``for name, loader in (("train", a), ("val", b))``."""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.syntax.branches import tests_around
from ds_migrate.syntax.nodes import dotted, elements, parameter, receiver
from ds_migrate.syntax.source import SourceFile

CONSTANTS = ("True", "False", "None")
_DEPTH = 3  # of names between an expression and a constant
Bindings = Mapping[str, cst.BaseExpression]  # what names of a loop are in one of its rounds


def rounds_of(node: cst.CSTNode, file: SourceFile, flow: Flow) -> list[Bindings]:
    """Return the rounds of the loop around a node that runs over written elements; one without names for no loop."""
    for outer in file.ancestors(node):
        if isinstance(outer, cst.FunctionDef):
            break
        if isinstance(outer, cst.For):
            rounds = [_bound(outer.target, element) for element in _written(outer.iter, file, flow)]
            if len(rounds) > 1 and all(rounds):
                return list(rounds)
    return [{}]


def constant_of(node: cst.BaseExpression, bindings: Bindings, file: SourceFile, flow: Flow, depth: int = _DEPTH) -> str:
    """Return the spelling of the constant, or of the text, that an expression has in a round; "" where unknown."""
    if isinstance(node, cst.SimpleString):
        return repr(node.evaluated_value)
    if dotted(node) in CONSTANTS:
        return dotted(node) or ""
    if isinstance(node, cst.Name) and depth:
        value = bindings.get(node.value) or _only_value(node, file, flow)
        return constant_of(value, bindings, file, flow, depth - 1) if value is not None else ""
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Not):
        return {"True": "False", "False": "True"}.get(constant_of(node.expression, bindings, file, flow, depth), "")
    if isinstance(node, cst.IfExp):
        chosen = {"True": node.body, "False": node.orelse}.get(constant_of(node.test, bindings, file, flow, depth))
        return constant_of(chosen, bindings, file, flow, depth) if chosen is not None else ""
    if isinstance(node, cst.BooleanOperation):
        decisive = "False" if isinstance(node.operator, cst.And) else "True"
        sides = [constant_of(side, bindings, file, flow, depth) for side in (node.left, node.right)]
        return decisive if decisive in sides else sides[0] if sides[0] == sides[1] else ""
    if isinstance(node, cst.Comparison) and len(node.comparisons) == 1:
        (target,) = node.comparisons
        sides = [constant_of(side, bindings, file, flow, depth) for side in (node.left, target.comparator)]
        if isinstance(target.operator, (cst.Equal, cst.Is, cst.NotEqual, cst.IsNot)) and all(sides):
            return str((sides[0] == sides[1]) is isinstance(target.operator, (cst.Equal, cst.Is)))
    return ""


def is_left_out(node: cst.CSTNode, file: SourceFile, bindings: Bindings, flow: Flow) -> bool:
    """Return whether a condition around a node in its function does not hold in a round."""
    return bool(bindings) and any(
        constant_of(test, bindings, file, flow) == ("False" if holds else "True")
        for test, holds in tests_around(file, node)
    )


def item_in_round(node: cst.BaseExpression, bindings: Bindings, file: SourceFile, flow: Flow) -> cst.BaseExpression:
    """Return what an expression is in a round: of a name of the loop, what it holds; itself for others."""
    for _ in range(_DEPTH):
        if not isinstance(node, cst.Name):
            break
        value = bindings.get(node.value)
        if value is not None:
            return value
        made = _only_value(node, file, flow) if bindings else None
        if not isinstance(made, (cst.Name, cst.Subscript)):
            break
        node = made
    return node


def _only_value(name: cst.Name, file: SourceFile, flow: Flow) -> cst.BaseExpression | None:
    """Return the one value that a name which is no parameter is set to."""
    function = file.function(name)
    if function is not None and parameter(function, name.value) is not None:
        return None
    values = flow.scopes(file).assigned(name)
    return values[0] if len(values) == 1 else None


def _written(over: cst.BaseExpression, file: SourceFile, flow: Flow) -> list[cst.BaseExpression]:
    """Return the elements of a tuple or list, or the pairs of a dict, that a loop runs over, as they are written."""
    owner = receiver(over, "items") if isinstance(over, cst.Call) and not over.args else None
    container = over if owner is None else owner
    if isinstance(container, cst.Name):
        container = _only_value(container, file, flow) or container
    if isinstance(container, cst.Dict) and owner is not None:
        items = [item for item in container.elements if isinstance(item, cst.DictElement)]
        return [cst.Tuple([cst.Element(item.key), cst.Element(item.value)]) for item in items]
    return elements(container) if isinstance(container, (cst.Tuple, cst.List)) and owner is None else []


def _bound(target: cst.BaseExpression, element: cst.BaseExpression) -> dict[str, cst.BaseExpression]:
    """Return the names that a loop sets to an element, or to the parts of one."""
    names, parts = elements(target), elements(element) if isinstance(target, cst.Tuple) else [element]
    if len(names) != len(parts) or not all(isinstance(name, cst.Name) for name in names):
        return {}
    return {name.value: part for name, part in zip(names, parts, strict=True) if isinstance(name, cst.Name)}
