"""Gradients of modules that no engine has: nothing averages them, so each rank has those of its share of the data."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.scopes import names_in
from ds_migrate.plain.dataflow.values import Kind, are_all, of_kind
from ds_migrate.syntax.nodes import dotted, walk
from ds_migrate.syntax.source import SourceFile

_MODULES = (Kind.MODULE, Kind.OBJECT)
_PARAMETERS = frozenset({"parameters", "named_parameters"})


def is_foreign_gradient(node: cst.Attribute, file: SourceFile, flow: Flow, modules: Collection[int]) -> bool:
    """Return whether an expression is the gradient of a parameter, of a module that no engine has.

    Args:
        modules: those of engines, by the identity of what makes them.
    """
    if node.attr.value != "grad":
        return False
    owner = node.value
    if isinstance(owner, cst.Name):
        loops = flow.scopes(file).nodes(owner, cst.For, cst.CompFor)
        holders = [base for loop in loops if owner.value in names_in(loop.target) for base in _holders(loop, owner)]
        made = [flow.values(base, file) for base in holders]
        return bool(made) and all(are_all(held, *_MODULES) and not any(v.key in modules for v in held) for held in made)
    parts = of_kind(flow.values(owner, file), Kind.PART)
    known = [flow.node_of(part.key) for part in parts]
    return bool(parts) and all(
        part.key not in modules and found is not None and isinstance(found[1], cst.Call)
        and bool(of_kind(flow.values(found[1], found[0]), *_MODULES))
        for part, found in zip(parts, known, strict=True)
    )  # fmt: skip


def _holders(loop: cst.For | cst.CompFor, name: cst.Name) -> Iterator[cst.BaseExpression]:
    """Yield the modules whose parameters a loop gives to a name."""
    over: cst.BaseExpression = loop.iter
    target: cst.BaseExpression = loop.target
    if isinstance(over, cst.Call) and dotted(over.func) == "zip" and isinstance(target, cst.Tuple):
        places = [i for i, element in enumerate(target.elements) if name.value in names_in(element.value)]
        over = over.args[places[0]].value if places and places[0] < len(over.args) else over
    for part in walk(over):
        if isinstance(part, cst.Attribute) and part.attr.value in _PARAMETERS:
            yield part.value
