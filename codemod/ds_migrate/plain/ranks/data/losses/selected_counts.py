"""Numbers of the samples that a mask selects of a batch, by which a loss may be divided."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.ranks.data.losses.batch_totals import BatchTotals
from ds_migrate.plain.ranks.data.losses.returned_values import item_of, returned_values
from ds_migrate.plain.ranks.data.losses.selected_samples import KEEPS, is_selected
from ds_migrate.syntax.nodes import called_name, dotted, operands, walk
from ds_migrate.syntax.source import SourceFile

# Calls that give the indices of what a mask selects, and those that count the samples of a tensor.
_FINDS = frozenset({"nonzero", "flatnonzero", "argwhere", "where"})
_COUNTS = frozenset({"len", "numel", "nelement", "size"})
_DEPTH = 5


def counts_selected(node: cst.CSTNode, file: SourceFile, totals: BatchTotals, depth: int = _DEPTH) -> bool:
    """Return whether a number is made of how many samples a mask selects: ``n += index.numel()``, ``len(x[mask])``."""
    return depth > 0 and totals.once(_counts_selected, node, file, depth)


def _counts_selected(node: cst.CSTNode, file: SourceFile, totals: BatchTotals, depth: int) -> bool:
    scopes = totals.flow.scopes(file)
    for part in walk(node):
        if isinstance(part, cst.Name):
            changes = [line.value for line in scopes.nodes(part, cst.AugAssign) if dotted(line.target) == part.value]
            values = [value for value in (*scopes.assigned(part), *changes) if value is not part]
            if any(counts_selected(value, file, totals, depth - 1) for value in values):
                return True
            if any(_is_unread(one, file, totals) for line in changes for each in walk(line) for one in counted(each)):
                return True
        if any(is_selected(one, file, totals) or _is_index(one, file, totals) for one in counted(part)):
            return True
    return False


def counted(node: cst.CSTNode) -> list[cst.BaseExpression]:
    """Return what a call may count the samples of: ``x`` of ``len(x)``, ``x.numel()`` and ``x.shape``."""
    if isinstance(node, cst.Call) and called_name(node) in _COUNTS:
        return operands(node)
    return [node.value] if isinstance(node, cst.Attribute) and node.attr.value == "shape" else []


def _is_unread(node: cst.BaseExpression, file: SourceFile, totals: BatchTotals) -> bool:
    """Return whether something is made of a batch by a function of the project that is in no file of the program."""
    lines = totals.flow.scopes(file).nodes(node, cst.Assign) if isinstance(node, cst.Name) else ()
    calls = [line.value for line in lines if isinstance(line.value, cst.Call) and totals.differs(line.value, file)]
    return any(
        value.name.startswith(".")
        for call in calls
        for value in of_kind(totals.flow.values(call.func, file), Kind.EXTERNAL)
    )


def _is_index(
    node: cst.BaseExpression, file: SourceFile, totals: BatchTotals, depth: int = _DEPTH, item: int | None = None
) -> bool:
    """Return whether something is the indices of what a mask selects, as a function of the program may return them.

    Args:
        item: the index of the element that is meant, of a tuple.
    """
    node = item_of(node, item)
    if isinstance(node, cst.Subscript):
        return _is_index(node.value, file, totals, depth)
    if isinstance(node, cst.Call) and depth:
        name = called_name(node)
        if name in _FINDS:
            return (name != "where" or len(node.args) == 1) and totals.differs(node, file)
        if name in KEEPS and isinstance(node.func, cst.Attribute):
            return _is_index(node.func.value, file, totals, depth)
        found = returned_values(node, file, totals.flow)
        return any(_is_index(value, home, totals, depth - 1, item) for home, value in found)
    if isinstance(node, cst.Name) and depth:
        scopes = totals.flow.scopes(file)
        values = [(value, item) for value in scopes.assigned(node) if value is not node] + scopes.unpacked(node)
        return any(_is_index(value, file, totals, depth - 1, index) for value, index in values)
    return False
