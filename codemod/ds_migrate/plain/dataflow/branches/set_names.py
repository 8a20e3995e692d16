"""Names by the lines that set them: whether one does on each way to a statement, and which one was the last."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from ds_migrate.plain.dataflow.scopes import Scopes, names_in
from ds_migrate.syntax.branches import upwards
from ds_migrate.syntax.nodes import last_statement, targets, walk
from ds_migrate.syntax.source import SourceFile

_LEAVES = (cst.Return, cst.Raise, cst.Continue, cst.Break)


def is_always_set(name: str, statement: cst.CSTNode, file: SourceFile) -> bool:
    """Return whether lines above a statement set a name, in blocks around it: of an ``if`` in each branch."""
    inner = statement
    for outer in file.ancestors(statement):
        if isinstance(outer, (cst.IndentedBlock, cst.Module)):
            place = next((i for i, line in enumerate(outer.body) if line is inner), 0)
            if any(_sets(line, name) for line in outer.body[:place]):
                return True
        bound = names_in(outer.target) if isinstance(outer, cst.For) else []
        items = outer.items if isinstance(outer, cst.With) else []
        if name in bound or any(_is_among(name, walk(item)) for item in items):
            return True
        if isinstance(outer, cst.FunctionDef):
            break
        inner = outer
    return False


def _sets(node: cst.CSTNode, name: str) -> bool:
    if not isinstance(node, cst.If):
        return _is_among(name, walk(node))
    branches = [node.body, node.orelse.body if isinstance(node.orelse, cst.Else) else node.orelse]
    return any(branch is not None and _sets_in(branch, name) for branch in branches) and all(
        branch is not None and (_sets_in(branch, name) or _is_left(branch)) for branch in branches
    )


def _sets_in(branch: cst.CSTNode, name: str) -> bool:
    if isinstance(branch, cst.If):
        return _sets(branch, name)
    return any(_sets(line, name) for line in getattr(branch, "body", ()))


def _is_left(branch: cst.CSTNode) -> bool:
    return isinstance(branch, cst.BaseSuite) and isinstance(last_statement(branch), _LEAVES)


def _is_among(name: str, nodes: Iterable[cst.CSTNode]) -> bool:
    """Return whether one of these nodes gives a name a value."""
    for node in nodes:
        if isinstance(node, (cst.Assign, cst.AnnAssign)):
            bound = {one for target in targets(node) for one in names_in(target)}
        elif isinstance(node, (cst.For, cst.NamedExpr)):
            bound = set(names_in(node.target))
        elif isinstance(node, cst.AsName):
            bound = set(names_in(node.name))
        elif isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            bound = {node.name.value}
        else:
            continue
        if name in bound:
            return True
    return False


_BLOCKS = (cst.Module, cst.IndentedBlock, cst.SimpleStatementLine)
_LOOPS = (cst.For, cst.While)
_ENTERED = (cst.Try, cst.TryStar, cst.With, cst.Match)
_SCOPES = (cst.FunctionDef, cst.ClassDef, cst.Lambda)


def latest_value(name: cst.Name, file: SourceFile, scopes: Scopes) -> cst.BaseExpression | None:
    """Return what the last assignment before a name gives it; None where another one may come between."""
    variable = scopes.variable(name.value, name)
    binding = [b for b in scopes.bindings.get(name.value, ()) if scopes.variable(name.value, b) == variable]
    if any(file.function(b) is not file.function(name) for b in binding):
        return None
    around = [{id(b), *map(id, file.ancestors(b))} for b in binding]
    for inner, outer in upwards(file, name):
        if isinstance(outer, _SCOPES):
            return None
        if isinstance(outer, _BLOCKS):
            before = outer.body[: next(i for i, part in enumerate(outer.body) if part is inner)]
            binders = [part for part in before if any(id(part) in chain for chain in around)]
            if binders:
                return _assigned(binders[-1], name.value)
        elif isinstance(outer, _LOOPS) and inner is not getattr(outer, "iter", None):  # the round before may set it
            if any(id(outer) in chain for chain in around):
                return None
        elif isinstance(outer, _ENTERED) and any(id(outer) in chain and id(inner) not in chain for chain in around):
            return None
    return None


def _assigned(statement: cst.CSTNode, name: str) -> cst.BaseExpression | None:
    """Return what a line gives a name by an assignment that does nothing else."""
    if isinstance(statement, cst.SimpleStatementLine):
        statement = statement.body[0]
    if not isinstance(statement, (cst.Assign, cst.AnnAssign)):
        return None
    is_set = any(isinstance(t, cst.Name) and t.value == name for t in targets(statement))
    return statement.value if is_set else None
