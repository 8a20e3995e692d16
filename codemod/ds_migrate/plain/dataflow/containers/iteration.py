"""Loops, and the sequences that their targets are taken from: ``for a, b in zip(x, y)`` takes a from x and b from y."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.scopes import Scopes
from ds_migrate.syntax.nodes import dotted, last_name, walk
from ds_migrate.syntax.source import SourceFile

_SAME_ITEMS = frozenset({"list", "tuple", "iter", "reversed"})
Pair = tuple[cst.BaseExpression, cst.BaseExpression]


def taken_from(target: cst.BaseExpression, over: cst.BaseExpression) -> Iterator[Pair]:
    """Yield the targets of a loop, each with the container of which it takes the items."""
    parts = [element.value for element in target.elements] if isinstance(target, cst.Tuple) else []
    if not isinstance(over, cst.Call) or any(arg.star for arg in over.args):
        yield target, over
        return
    name, args = dotted(over.func), [arg.value for arg in over.args]
    owner = over.func.value if isinstance(over.func, cst.Attribute) and not args else None
    method = over.func.attr.value if isinstance(over.func, cst.Attribute) else ""
    if name == "zip" and len(parts) == len(args):
        for part, arg in zip(parts, args, strict=True):
            yield from taken_from(part, arg)
    elif name == "enumerate" and len(parts) == 2 and args:
        yield from taken_from(parts[1], args[0])
    elif name in _SAME_ITEMS and args:
        yield from taken_from(target, args[0])
    elif owner is not None and method == "values":
        yield target, owner
    elif owner is not None and method == "items" and len(parts) == 2:
        yield parts[1], owner
    else:
        yield target, over


def counts_items(
    over: cst.BaseExpression, file: SourceFile, scopes: Scopes, known: frozenset[str] = frozenset()
) -> bool:
    """Return whether a loop counts what it runs over, by ``enumerate()``, in a progress bar or not."""
    if isinstance(over, cst.Call) and over.args:
        name = last_name(over.func)
        return name == "enumerate" or (name == "tqdm" and counts_items(over.args[0].value, file, scopes, known))
    if not isinstance(over, cst.Name) or over.value in known:
        return isinstance(over, cst.Name)
    values = list(file.values_of({over.value}, scopes.owner(over.value, over)))
    return bool(values) and all(counts_items(value, file, scopes, known | {over.value}) for value in values)


def loops_of(name: cst.Name, file: SourceFile) -> Iterator[cst.For | cst.CompFor]:
    """Yield the loop around a name that sets it."""
    for outer in file.ancestors(name):
        if isinstance(outer, cst.FunctionDef):
            return
        over = outer if isinstance(outer, cst.For) else outer.for_in if isinstance(outer, cst.BaseComp) else None
        while over is not None:
            if any(isinstance(part, cst.Name) and part.value == name.value for part in walk(over.target)):
                yield over
                return
            over = over.inner_for_in if isinstance(over, cst.CompFor) else None
