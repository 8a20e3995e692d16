"""The assignment that gave a name its value, where the lines of a block show which one did."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.scopes import Scopes
from ds_migrate.syntax.branches import upwards
from ds_migrate.syntax.nodes import targets
from ds_migrate.syntax.source import SourceFile

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
