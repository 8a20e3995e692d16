"""Sets and sequences that hold numbers alone, which hash alike in each process."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.syntax.nodes import called_name, dotted, elements, number, operands
from ds_migrate.syntax.source import SourceFile

_OPERATORS = (cst.BitOr, cst.BitAnd, cst.Subtract, cst.BitXor)
_NUMBERS = frozenset({"int", "len", "float", "ord", "item"})
_KEEPS = frozenset(
    {"list", "tuple", "sorted", "set", "frozenset", "union", "intersection", "difference", "symmetric_difference"}
)
_ADDS = frozenset({"add", "update", "append", "extend", "insert"})
_ARRAYS = frozenset({"numpy", "tolist"})
_DEPTH = 8


def holds_numbers(
    node: cst.BaseExpression, file: SourceFile, flow: Flow, depth: int = _DEPTH, of: frozenset[str] = frozenset()
) -> bool:
    """Return whether all items of a set or sequence are numbers.

    Args:
        of: the names that are looked into: what is left of one may take its place.
    """
    if depth == 0:
        return False
    depth -= 1
    if isinstance(node, (cst.Set, cst.List, cst.Tuple)):
        return all(_is_number(element.value) for element in node.elements)
    if isinstance(node, (cst.SetComp, cst.ListComp, cst.GeneratorExp)):
        over = node.for_in
        is_item = dotted(node.elt) is not None and dotted(node.elt) == dotted(over.target)
        return (
            _is_number(node.elt)
            or _is_counter(node.elt, over)
            or (is_item and holds_numbers(over.iter, file, flow, depth, of))
        )
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, _OPERATORS):
        left, right = (holds_numbers(side, file, flow, depth, of) for side in (node.left, node.right))
        is_any = isinstance(node.operator, cst.BitAnd)
        return (left or right) if is_any else left if isinstance(node.operator, cst.Subtract) else left and right
    if isinstance(node, cst.Call):
        name, parts = called_name(node), operands(node)
        if name == "map":
            return bool(node.args) and dotted(node.args[0].value) in _NUMBERS
        return (
            name == "range"
            or _is_tensor_array(node)
            or (name in _KEEPS and bool(parts) and all(holds_numbers(p, file, flow, depth, of) for p in parts))
        )
    if not isinstance(node, cst.Name) or _is_added_to(node, file):
        return False
    made = [] if node.value in of else flow.scopes(file).assigned(node)
    return node.value in of or (
        bool(made) and all(holds_numbers(value, file, flow, depth, of | {node.value}) for value in made)
    )


def _is_tensor_array(call: cst.Call) -> bool:
    """Return whether a call returns the numbers of a tensor: ``labels.cpu().numpy()``, ``labels.detach().tolist()``."""
    owner = call.func.value if isinstance(call.func, cst.Attribute) else None
    if called_name(call) not in _ARRAYS or not isinstance(owner, cst.Call) or not isinstance(owner.func, cst.Attribute):
        return False
    return called_name(owner) in ("cpu", "detach") or _is_tensor_array(owner)


def _is_counter(node: cst.BaseExpression, over: cst.CompFor) -> bool:
    """Return whether a name counts the items that a comprehension goes through, by ``enumerate()``."""
    is_counted = isinstance(over.iter, cst.Call) and called_name(over.iter) == "enumerate"
    parts = elements(over.target)
    return is_counted and len(parts) == 2 and dotted(node) is not None and dotted(node) == dotted(parts[0])


def _is_added_to(node: cst.Name, file: SourceFile) -> bool:
    """Return whether items are added to a collection of this name."""
    return any(
        isinstance(call.func, cst.Attribute) and dotted(call.func.value) == node.value and call.func.attr.value in _ADDS
        for call in file.nodes(cst.Call)
    )


def _is_number(node: cst.BaseExpression) -> bool:
    """Return whether an expression makes a number."""
    return number(node) is not None or (isinstance(node, cst.Call) and called_name(node) in _NUMBERS)
