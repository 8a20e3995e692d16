"""Sets that are numbered: strings hash differently in each process, so each rank would number them in another order."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import dotted, targets
from ds_migrate.syntax.source import SourceFile

_ORDERED = frozenset({"list", "tuple", "enumerate"})
_SETS = frozenset({"set", "frozenset"})
_UNORDERED = frozenset({"sorted", "len", "set", "sum", "max", "min"})  # what is made of it does not depend on its order


def numbered_sets(files: list[SourceFile], flow: Flow) -> Iterator[Note]:
    """Yield a note for each set that is put into an order."""
    for file in files:
        for call in file.nodes(cst.Call):
            if dotted(call.func) not in _ORDERED or not call.args or not _is_set(call.args[0].value, file, flow):
                continue
            around = next((a for a in file.ancestors(call) if not isinstance(a, cst.Arg)), None)
            if isinstance(around, cst.Call) and dotted(around.func) in _UNORDERED:
                continue
            if not _is_sorted_later(around, file):
                yield Note(
                    Code.PLAIN_AGREEMENT, file, call,
                    "a set of strings has another order on each rank, which would number its items differently",
                    "sort it: sorted(...)",
                )  # fmt: skip


def _is_set(node: cst.BaseExpression, file: SourceFile, flow: Flow) -> bool:
    if isinstance(node, (cst.Set, cst.SetComp)):
        return True
    if isinstance(node, cst.Call):
        return dotted(node.func) in _SETS
    if isinstance(node, cst.Name):
        assigned = file.values_of({node.value}, flow.scopes(file).owner(node.value, node))
        return bool(assigned) and all(not isinstance(v, cst.Name) and _is_set(v, file, flow) for v in assigned)
    return False


def _is_sorted_later(around: cst.CSTNode | None, file: SourceFile) -> bool:
    names = {dotted(target) for target in targets(around)} if around is not None else set()
    return any(
        isinstance(call.func, cst.Attribute) and call.func.attr.value == "sort" and dotted(call.func.value) in names
        for call in file.nodes(cst.Call)
    )
