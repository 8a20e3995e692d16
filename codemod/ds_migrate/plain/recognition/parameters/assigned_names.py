"""The values that a name holds where it stands: ``points = points.detach().numpy()`` behind the loop is not trained."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import libcst as cst

from ds_migrate.plain.dataflow.branches.blocks import always_runs_before
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.scopes import names_in
from ds_migrate.plain.dataflow.values import Values
from ds_migrate.syntax.nodes import dotted, targets
from ds_migrate.syntax.source import SourceFile

_LISTED = (cst.Element, cst.StarredElement, cst.Tuple, cst.List)
_BINDING = (
    cst.AssignTarget, cst.AugAssign, cst.NamedExpr, cst.For, cst.CompFor, cst.AsName, cst.Param, cst.NameItem,
    cst.FunctionDef, cst.ClassDef, cst.ImportAlias,
)  # fmt: skip


def held_there(node: cst.Name | cst.Attribute, file: SourceFile, flow: Flow) -> Values:
    """Return what a name holds, without what lines make that it loses before, or that come later."""
    values = flow.values(node, file)
    if len(values) < 2 or not isinstance(node, cst.Name):
        return values
    lines = [
        line for line in flow.scopes(file).nodes(node, cst.Assign, cst.AnnAssign)
        if any(dotted(target) == node.value for target in targets(line))
    ]  # fmt: skip
    live = [line for line in lines if not comes_later(line, node, file)]
    last = max((line for line in live if always_runs_before(line, node, file)), key=file.position, default=None)
    if last is not None:
        own = file.function(last)
        live = [n for n in live if file.function(n) is not own or file.position(n) >= file.position(last)]
    kept = {value for line in live for value in flow.values(line.value, file)}
    lost = {id(line) for line in lines if line not in live}
    is_explained = not _is_bound_otherwise(node, file, flow)
    return frozenset(v for v in values if v in kept or not (is_explained or _is_made_in(lost, v.key, flow)))


def is_renewed(node: cst.BaseExpression, file: SourceFile, around: Sequence[cst.CSTNode]) -> bool:
    """Return whether a loop, none of those around an optimizer, gives a name something else in each round."""
    name = dotted(node)
    if name is None:
        return False
    loops = [
        outer for outer in takewhile(lambda outer: not isinstance(outer, cst.FunctionDef), file.ancestors(node))
        if isinstance(outer, (cst.For, cst.While)) and not any(outer is known for known in around)
    ]  # fmt: skip
    names = {
        dotted(target)
        for loop in loops
        for line in file.nodes(cst.Assign, cst.AnnAssign, below=loop)
        for target in targets(line)
    } | {bound for loop in loops if isinstance(loop, cst.For) for bound in names_in(loop.target)}
    return any(name == bound or name.startswith(f"{bound}.") for bound in names)


def comes_later(line: cst.CSTNode, node: cst.Name | cst.Attribute, file: SourceFile) -> bool:
    """Return whether a line runs only after a name was read, in the same function and no loop around both."""
    if not isinstance(node, cst.Name) or file.function(line) is not file.function(node):
        return False
    loops = {id(outer) for outer in file.ancestors(line) if isinstance(outer, (cst.For, cst.While))}
    is_repeated = any(id(outer) in loops for outer in file.ancestors(node))
    return not is_repeated and file.position(line) > file.position(file.statement(node))


def _is_bound_otherwise(node: cst.Name, file: SourceFile, flow: Flow) -> bool:
    """Return whether a name gets values by anything else than lines that assign to it alone, as an argument does."""
    for name in flow.scopes(file).nodes(node, cst.Name):
        outers = list(file.ancestors(name))
        outer = next(one for one in outers if not isinstance(one, _LISTED))
        is_alone = isinstance(outer, cst.AssignTarget) and outer is outers[0]
        if name.value == node.value and isinstance(outer, _BINDING) and not is_alone:
            return True
    return False


def _is_made_in(lines: set[int], key: int, flow: Flow) -> bool:
    made = flow.node_of(key) if lines else None
    return made is not None and any(id(outer) in lines for outer in made[0].ancestors(made[1]))
