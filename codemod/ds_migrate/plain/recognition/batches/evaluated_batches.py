"""Batches that a function draws to evaluate a model on them, and keeps none of."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.scopes import names_in
from ds_migrate.plain.dataflow.torch_names import NO_GRAD
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.recognition.facts import LoopFacts
from ds_migrate.syntax.nodes import called_name, dotted, elements, iterator_argument, number, receiver, targets, walk
from ds_migrate.syntax.source import SourceFile

_NUMBERS = frozenset({"float", "int", "item", "len"})
_PUTS = frozenset({"append", "appendleft", "copy_", "extend", "insert", "push", "put"})


def only_evaluates(call: cst.Call, file: SourceFile, facts: LoopFacts) -> bool:
    """Return whether a call runs a function that evaluates and keeps no batch, for its numbers or for no result."""
    flow = facts.flow
    called = of_kind(flow.values(call.func, file), Kind.FUNCTION, Kind.METHOD)
    if not called:
        return False
    for value in called:
        within, function = flow.file(value), flow.node(value)
        if not isinstance(function, cst.FunctionDef) or not _evaluates(function, within, flow):
            return False
        if any(facts.flow.callers.reaches(value.key, backward.function) for backward in facts.operations.backwards):
            return False
        if _keeps_batches(function, within):
            return False
        if not isinstance(file.parent(call), cst.Expr) and not _returns_numbers(function, within, flow):
            return False
    return True


def _evaluates(function: cst.FunctionDef, file: SourceFile, flow: Flow, depth: int = 2) -> bool:
    """Return whether a function, or one that it calls, sets a module to ``eval()`` or computes without gradients."""
    calls = file.nodes(cst.Call, below=function)
    return any(
        (receiver(call, "eval") is not None and not call.args) or flow.is_call_of(call, file, NO_GRAD) for call in calls
    ) or any(
        isinstance(inner := flow.node(value), cst.FunctionDef) and _evaluates(inner, flow.file(value), flow, depth - 1)
        for call in (calls if depth else ())
        for value in of_kind(flow.values(call.func, file), Kind.FUNCTION, Kind.METHOD)
    )


def _returns_numbers(function: cst.FunctionDef, file: SourceFile, flow: Flow) -> bool:
    """Return whether all that a function returns are numbers of Python."""
    returned = [value for value in file.returned(function) if value is not None]
    return bool(returned) and all(_is_number(value, file, flow) for value in returned)


def _is_number(node: cst.BaseExpression, file: SourceFile, flow: Flow, above: frozenset[str] = frozenset()) -> bool:
    """Return whether an expression makes a number of Python, or a tuple of these.

    Args:
        above: the names that are looked into: what is added to one may be made of it.
    """
    if isinstance(node, cst.Name):
        made = [] if node.value in above else flow.scopes(file).assigned(node)
        return node.value in above or (
            bool(made) and all(_is_number(value, file, flow, above | {node.value}) for value in made)
        )
    if isinstance(node, cst.BinaryOperation):
        return all(_is_number(side, file, flow, above) for side in (node.left, node.right))
    if isinstance(node, cst.Tuple):
        return all(_is_number(element.value, file, flow, above) for element in node.elements)
    return number(node) is not None or (isinstance(node, cst.Call) and called_name(node) in _NUMBERS)


def _keeps_batches(function: cst.FunctionDef, file: SourceFile) -> bool:
    """Return whether a function assigns a batch that it draws, or what it makes of that, to more than local names."""
    lines = file.nodes(cst.Assign, cst.AnnAssign, cst.AugAssign, below=function)
    drawn: set[str] = set()
    while True:
        bound = [
            target for line in lines if line.value is not None and _is_of(line.value, drawn) for target in targets(line)
        ]
        if any(isinstance(part, (cst.Attribute, cst.Subscript)) for target in bound for part in elements(target)):
            return True
        names = {name for target in bound for name in names_in(target)}
        if names <= drawn:
            break
        drawn |= names
    if any(_is_put_away(call, drawn, file, function) for call in file.nodes(cst.Call, below=function)):
        return True
    kept = {item.name.value for node in file.nodes(cst.Global, cst.Nonlocal, below=function) for item in node.names}
    return bool(kept & drawn)


def _is_put_away(call: cst.Call, drawn: set[str], file: SourceFile, function: cst.FunctionDef) -> bool:
    """Return whether a call puts a batch into a container, or a tensor, which the function has not made."""
    owner = receiver(call, *_PUTS)
    if owner is None:
        return False
    name = dotted(owner)
    is_own = name is not None and bool(file.values_of({name}, function))
    return not is_own and any(_is_of(arg.value, drawn) for arg in call.args)


def _is_of(value: cst.BaseExpression, names: set[str]) -> bool:
    return any(
        (isinstance(node, cst.Call) and iterator_argument(node, "next") is not None)
        or (isinstance(node, cst.Name) and node.value in names)
        for node in walk(value)
    )
