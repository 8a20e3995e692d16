"""Sizes that differ by rank: how many samples of a share a mask selects, or a loop collects under a condition.

A batch has as many samples on each rank, and ``len()`` is the same there. What a program selects of it has not.
"""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.rank_values import RankValues
from ds_migrate.plain.ranks.data.losses.batch_totals import BatchTotals
from ds_migrate.plain.ranks.data.losses.selected_counts import counted, counts_selected
from ds_migrate.syntax.nodes import called_name, dotted, targets, walk
from ds_migrate.syntax.source import SourceFile

_DISTINCT = frozenset({"unique", "unique_consecutive", "set", "frozenset", "Counter", "nms", "batched_nms"})
_ADDS = frozenset({"append", "add", "extend", "update"})
_DICTS = frozenset({"dict", "defaultdict", "OrderedDict", "Counter"})
DEPTH = 3  # names of names


def sizes_differ(node: cst.BaseExpression, file: SourceFile, values: RankValues, totals: BatchTotals) -> bool:
    """Return whether an expression asks for a size that differs by rank."""
    return counts_selected(node, file, totals) or _counts_some(node, file, values, DEPTH)


def _counts_some(node: cst.BaseExpression, file: SourceFile, values: RankValues, depth: int) -> bool:
    """Return whether an expression is made of the size of distinct samples, or of those that are collected."""
    for part in walk(node):
        if any(holds_some(one, file, values, DEPTH) for one in counted(part)):
            return True
        if isinstance(part, cst.Name) and depth:
            assigned = values.flow.scopes(file).assigned(part)
            if any(_counts_some(value, file, values, depth - 1) for value in assigned):
                return True
    return False


def holds_some(node: cst.BaseExpression, file: SourceFile, values: RankValues, depth: int) -> bool:
    """Return whether something holds some samples of a share alone."""
    if isinstance(node, cst.Call):
        return called_name(node) in _DISTINCT and values.differs(node, file)
    if isinstance(node, (cst.ListComp, cst.SetComp, cst.DictComp)):
        return any(values.differs(test.test, file) for test in node.for_in.ifs)
    if not isinstance(node, cst.Name) or not depth:
        return False
    scopes = values.flow.scopes(file)
    added = [line.value for line in scopes.nodes(node, cst.AugAssign) if dotted(line.target) == node.value]
    if any(holds_some(value, file, values, depth - 1) for value in (*scopes.assigned(node), *added)):
        return True
    if _holds_some_keys(node, file, values):
        return True
    if any(holds_some(value, home, values, depth - 1) for value, home in values.flow.callers.given(node, file)):
        return True
    return any(
        isinstance(call.func, cst.Attribute)
        and call.func.attr.value in _ADDS
        and dotted(call.func.value) == node.value
        and (values.depends(call, file) or any(holds_some(arg.value, file, values, depth - 1) for arg in call.args))
        for call in file.nodes(cst.Call, below=file.function(node) or file.module)
    )


def _holds_some_keys(name: cst.Name, file: SourceFile, values: RankValues) -> bool:
    """Return whether a name is a dict of which an item is set under a condition that differs by rank."""
    scopes = values.flow.scopes(file)
    made = scopes.assigned(name)
    if not any(isinstance(one, cst.Dict) or (isinstance(one, cst.Call) and called_name(one) in _DICTS) for one in made):
        return False
    return any(
        isinstance(target, cst.Subscript) and dotted(target.value) == name.value and values.depends(line, file)
        for line in scopes.nodes(name, cst.Assign)
        for target in targets(line)
    )
