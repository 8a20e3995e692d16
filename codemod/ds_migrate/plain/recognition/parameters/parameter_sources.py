"""The expressions that hold the parameters of an optimizer, behind the names that a program gives them."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.containers.mappings import display_items, is_mapping_call
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.recognition.parameters.assigned_names import comes_later
from ds_migrate.syntax.nodes import dotted, receiver, set_values, targets, walk
from ds_migrate.syntax.one_line import expression_text
from ds_migrate.syntax.source import SourceFile


class UnknownOwnerError(Exception):
    """A part of an optimizer's parameters belongs to no module that can be named.

    Attributes:
        unknown: the expression that cannot be followed, with its file.
        is_module: whether that is asked for its parameters.
    """

    def __init__(
        self, message: str, unknown: tuple[cst.BaseExpression, SourceFile] | None = None, *, is_module: bool = False
    ) -> None:
        super().__init__(message)
        self.unknown = unknown
        self.is_module = is_module


def sources_of_name(node: cst.Name | cst.Attribute, file: SourceFile, flow: Flow) -> Iterator[tuple[cst.CSTNode, bool]]:
    """Yield what a list of parameters is made of, in the function that holds it."""
    name = dotted(node)
    if name is None:  # of an item
        return
    if isinstance(node, cst.Name):
        scope = flow.scopes(file).owner(node.value, node)
        if isinstance(scope, cst.FunctionDef) and any(p.name.value == node.value for p in scope.params.params):
            raise UnknownOwnerError(f"{name} is an argument of {scope.name.value}()", (node, file))
    for assign in flow.scopes(file).nodes(node, cst.Assign, cst.AnnAssign, cst.AugAssign):
        values = [value for target, value in set_values(assign) if dotted(target) == name and value is not None]
        if values and not comes_later(assign, node, file):
            yield from ((value, value is not assign.value) for value in values)
        elif any(isinstance(target, cst.Subscript) and dotted(target.value) == name for target in targets(assign)):
            assert assign.value is not None
            yield assign.value, True
    for loop in flow.scopes(file).nodes(node, cst.For):
        if any(dotted(part) == name for part in walk(loop.target)):
            yield iterated(loop, node), True
    for call in flow.scopes(file).nodes(node, cst.Call):
        filled = receiver(call, "append", "extend") if call.args else None
        if filled is not None and any(dotted(holder) == name for holder in _filled(filled, file, flow)):
            yield call.args[0].value, True


def _filled(node: cst.BaseExpression, file: SourceFile, flow: Flow) -> Iterator[cst.BaseExpression]:
    """Yield the lists, or the container of lists, of which an expression is one."""
    chosen = [node]
    if isinstance(node, cst.Name):
        scope = flow.scopes(file).owner(node.value, node)
        chosen += [value for value in file.values_of({node.value}, scope) if isinstance(value, cst.IfExp)]
    for each in chosen:
        if isinstance(each, cst.IfExp):
            yield from (each.body, each.orelse)
        else:
            yield each.value if isinstance(each, cst.Subscript) else each


def replaces(source: cst.CSTNode, name: cst.Name | cst.Attribute, file: SourceFile) -> bool:
    """Return whether a name that is assigned this loses what it held: one of several such is in force."""
    is_assigned = isinstance(file.parent(source), (cst.Assign, cst.AnnAssign))
    return is_assigned and not any(
        dotted(n) == dotted(name) for n in walk(source) if isinstance(n, (cst.Name, cst.Attribute))
    )


def iterated(loop: cst.For | cst.CompFor, item: cst.CSTNode) -> cst.BaseExpression:
    """Return what the names that an item is made of run over: of ``zip()``, its argument for them alone."""
    over, target = loop.iter, loop.target
    if not (isinstance(over, cst.Call) and dotted(over.func) == "zip" and isinstance(target, cst.Tuple)):
        return over
    used = {node.value for part in _parameters_in(item) for node in walk(part) if isinstance(node, cst.Name)}
    given = [arg.value for arg, e in zip(over.args, target.elements, strict=False) if dotted(e.value) in used]
    return given[0] if len(given) == 1 else over


def _parameters_in(item: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield the parameters of a group, and anything else as it is."""
    if isinstance(item, cst.Dict) or is_mapping_call(item):
        yield from (value for key, value in display_items(item) if key == "params")
    else:
        yield item


def text_of(node: cst.CSTNode) -> str:
    return str(node.evaluated_value) if isinstance(node, cst.SimpleString) else ""


def shown(node: cst.CSTNode) -> str:
    text = expression_text(node) if isinstance(node, cst.BaseExpression) else type(node).__name__
    return text if len(text) < 60 else f"{text[:57]}..."
