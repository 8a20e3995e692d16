"""Additions of loops and functions to lists, dicts, arrays and tensors that are there before they begin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import libcst as cst

from ds_migrate.plain.dataflow.scopes import names_in
from ds_migrate.syntax.nodes import called_name, dotted, elements, indices_of, targets, without_index
from ds_migrate.syntax.source import SourceFile

_ADDS = frozenset({"append", "extend", "update", "add"})
_JOINS = frozenset({"cat", "concat", "concatenate", "append", "vstack", "hstack", "stack"})


class CollectedItem(NamedTuple):
    """Something that a loop or a function adds to what is there before.

    Attributes:
        into: the name or attribute of that.
        value: what is added, or where: ``counts[y] += 1``.
    """

    into: cst.BaseExpression
    value: cst.BaseExpression


def collected_items(loop: cst.For | cst.While | cst.FunctionDef, file: SourceFile) -> Iterator[CollectedItem]:
    """Yield what code adds to something by a call, by an operator, as an item, or where it joins both anew."""
    lines: list[cst.Assign] = file.nodes(cst.Assign, below=loop.body)
    own = set(names_in(loop.target)) if isinstance(loop, cst.For) else set[str]()
    for line in lines:
        if not _joined(line):
            own.update(dotted(t) or "" for target in targets(line) for t in elements(target))
    found = list[CollectedItem]()
    for call in file.nodes(cst.Call, below=loop.body):
        if isinstance(call.func, cst.Attribute) and call.func.attr.value in _ADDS:
            found += [CollectedItem(without_index(call.func.value), arg.value) for arg in call.args]
    for change in file.nodes(cst.AugAssign, below=loop.body):
        added = [change.value, *indices_of(change.target)]
        found += [CollectedItem(without_index(change.target), value) for value in added]
    for line in lines:
        items = [target for target in targets(line) if isinstance(target, cst.Subscript)]
        found += [CollectedItem(without_index(target), line.value) for target in items]
        found += [CollectedItem(line.targets[0].target, joined) for joined in _joined(line)]
    yield from (one for one in found if _root(one.into) not in own and dotted(one.into) not in own)


def _joined(line: cst.Assign) -> list[cst.BaseExpression]:
    """Return what a line joins to a name, as ``new`` in ``all = torch.cat([all, new])``."""
    name = dotted(line.targets[0].target)
    made = [line.value.body, line.value.orelse] if isinstance(line.value, cst.IfExp) else [line.value]
    for one in made if name is not None else ():
        if isinstance(one, cst.Call) and called_name(one) in _JOINS:
            parts = [part for arg in one.args for part in elements(arg.value)]
            if any(dotted(part) == name for part in parts):
                return [part for part in parts if dotted(part) != name]
    return []


def _root(node: cst.BaseExpression) -> str:
    return (dotted(node) or "").partition(".")[0]
