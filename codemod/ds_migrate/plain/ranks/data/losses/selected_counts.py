"""Numbers of the samples that a mask selects of a batch, by which a loss may be divided."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.ranks.data.losses.batch_totals import BatchTotals
from ds_migrate.plain.ranks.data.losses.returned_values import index_in, item_of, returned_values
from ds_migrate.plain.ranks.data.losses.selected_samples import is_selected
from ds_migrate.syntax.nodes import called_name, dotted, operands, walk
from ds_migrate.syntax.source import SourceFile

# Calls that give the indices of what a mask selects, and those that count the samples of a tensor.
_FINDS = frozenset({"nonzero", "flatnonzero", "argwhere", "where"})
_COUNTS = frozenset({"len", "numel", "nelement", "size"})
_DEPTH = 5


def counts_selected(node: cst.CSTNode, file: SourceFile, totals: BatchTotals, depth: int = _DEPTH) -> bool:
    """Return whether a number is made of how many samples a mask selects: ``n += index.numel()``, ``len(x[mask])``."""
    scopes = totals.flow.scopes(file)
    for part in walk(node) if depth else ():
        counted: list[cst.BaseExpression] = []
        if isinstance(part, cst.Call) and called_name(part) in _COUNTS:
            counted = operands(part)
        elif isinstance(part, cst.Attribute) and part.attr.value == "shape":
            counted = [part.value]
        elif isinstance(part, cst.Name):
            changes = [line.value for line in scopes.nodes(part, cst.AugAssign) if dotted(line.target) == part.value]
            values = [*scopes.assigned(part), *changes]
            if any(counts_selected(value, file, totals, depth - 1) for value in values if value is not part):
                return True
        if any(is_selected(one, file, totals) or _is_index(one, file, totals) for one in counted):
            return True
    return False


def _is_index(node: cst.BaseExpression, file: SourceFile, totals: BatchTotals, depth: int = _DEPTH) -> bool:
    """Return whether something is the indices of what a mask selects, as a function of the program may return them."""
    if isinstance(node, cst.Subscript):
        return _is_index(node.value, file, totals, depth)
    if isinstance(node, cst.Call) and depth:
        name = called_name(node)
        if name in _FINDS:
            return (name != "where" or len(node.args) == 1) and totals.differs(node, file)
        found = returned_values(node, file, totals.flow)
        return any(_is_index(value, home, totals, depth - 1) for home, value in found)
    if isinstance(node, cst.Name) and depth:
        scopes = totals.flow.scopes(file)
        if any(_is_index(value, file, totals, depth - 1) for value in scopes.assigned(node) if value is not node):
            return True
        calls = [(line.value, index_in(line, node.value)) for line in scopes.nodes(node, cst.Assign)]
        return any(
            _is_index(item_of(value, index), home, totals, depth - 1)
            for call, index in calls
            if isinstance(call, cst.Call) and index is not None
            for home, value in [(file, call), *returned_values(call, file, totals.flow)]
        )
    return False
