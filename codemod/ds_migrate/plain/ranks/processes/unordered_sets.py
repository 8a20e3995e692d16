"""Sets that are numbered: strings hash differently in each process, so each rank would number them in another order."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.calls.idle_functions import idle_functions
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.ranks.processes.number_collections import holds_numbers
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import called_name, dotted, dotted_names, targets
from ds_migrate.syntax.source import SourceFile

_ORDERED = frozenset({"list", "tuple", "enumerate", "zip"})
_SETS = frozenset({"set", "frozenset", "set.union", "set().union", "set.intersection"})
_SET_METHODS = frozenset({"union", "intersection", "difference", "symmetric_difference"})
# The order has no effect.
_UNORDERED = _SETS | {"sorted", "len", "sum", "max", "min", "any", "all", "np.sort", "np.unique", "numpy.sort"}
_ASKS = frozenset({"isin", "in1d", "issubset", "issuperset", "isdisjoint"})  # methods, and functions of NumPy
_OPERATORS = (cst.BitOr, cst.BitAnd, cst.Subtract, cst.BitXor)


def numbered_sets(files: list[SourceFile], flow: Flow) -> Iterator[Note]:
    """Yield a note for each set that is put into an order, unless it holds numbers: these hash alike everywhere."""
    idle = idle_functions(flow)
    for file in files:
        for node in (*file.nodes(cst.Call), *file.nodes(cst.ListComp), *file.nodes(cst.For)):
            sets = [value for value in _ordered(node, file) if _is_set(value, file, flow)]
            is_ordered = any(not holds_numbers(value, file, flow) for value in sets) and not _loses_order(node, file)
            if is_ordered and not idle.hold(node, file):
                yield Note(
                    Code.PLAIN_AGREEMENT, file, node.iter if isinstance(node, cst.For) else node,
                    "a set of strings has another order on each rank, which would number its items differently",
                    "sort it: sorted(...)",
                )  # fmt: skip


def _ordered(node: cst.CSTNode, file: SourceFile) -> list[cst.BaseExpression]:
    """Return what a call, a comprehension or a loop puts into an order."""
    if isinstance(node, cst.Call):
        return [arg.value for arg in node.args] if dotted(node.func) in _ORDERED else []
    if isinstance(node, cst.ListComp):
        return [node.for_in.iter]
    return [node.iter] if isinstance(node, cst.For) and _numbers(node, file) else []


def _numbers(loop: cst.For, file: SourceFile) -> bool:
    """Return whether a loop gives each item the number of items before it: ``index[word] = len(index)``."""
    counted = {dotted(step.target) for step in file.nodes(cst.AugAssign, below=loop.body)}
    return any(
        isinstance(target.target, cst.Subscript)
        and any(
            (isinstance(read, cst.Call) and dotted(read.func) == "len") or dotted(read) in counted
            for read in file.nodes(cst.Call, cst.Name, cst.Attribute, below=assign.value)
        )
        for assign in file.nodes(cst.Assign, below=loop.body)
        for target in assign.targets
    )


def _loses_order(node: cst.CSTNode, file: SourceFile) -> bool:
    around = next((a for a in file.ancestors(node) if not isinstance(a, (cst.Arg, cst.BinaryOperation))), None)
    is_sorted = isinstance(around, cst.Call) and "sorted" in called_name(around)  # and natsorted()
    is_lost = is_sorted or (
        isinstance(around, cst.Call) and (dotted(around.func) in _UNORDERED or called_name(around) in _ASKS)
    )
    return is_lost or _is_sorted_later(around, file) or _is_taken_away(node, file)


def _is_taken_away(node: cst.CSTNode, file: SourceFile) -> bool:
    """Return whether a list is that of the columns that a table loses: ``table.drop(columns=[...])``."""
    arg = file.parent(node)
    call = file.parent(arg) if isinstance(arg, cst.Arg) and arg.keyword is not None else None
    is_columns = isinstance(arg, cst.Arg) and arg.keyword is not None and arg.keyword.value == "columns"
    return is_columns and isinstance(call, cst.Call) and called_name(call) == "drop"


def _is_set(node: cst.BaseExpression, file: SourceFile, flow: Flow, depth: int = 6) -> bool:
    if isinstance(node, (cst.Set, cst.SetComp)):
        return True
    if depth == 0:  # names that are made of each other
        return False
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, _OPERATORS):
        return _is_set(node.left, file, flow, depth - 1)
    if isinstance(node, cst.Call):
        method = node.func if isinstance(node.func, cst.Attribute) and node.func.attr.value in _SET_METHODS else None
        return dotted(node.func) in _SETS or (method is not None and _is_set(method.value, file, flow, depth - 1))
    name = dotted(node)
    if name is None:
        return False
    inside = flow.scopes(file).owner(name, node) if isinstance(node, cst.Name) else file.module
    made = [v for v in file.values_of({name}, inside) if name not in dotted_names(v)]  # not s = s.union(t)
    return bool(made) and all(dotted(v) is None and _is_set(v, file, flow, depth - 1) for v in made)


def _is_sorted_later(around: cst.CSTNode | None, file: SourceFile) -> bool:
    names = {dotted(target) for target in targets(around)} if around is not None else set()
    return any(
        isinstance(call.func, cst.Attribute) and call.func.attr.value == "sort" and dotted(call.func.value) in names
        for call in file.nodes(cst.Call)
    )
