"""Names by the lines that set them: whether one does on each way to a statement, and which one was the last."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.scopes import Scopes
from ds_migrate.syntax.branches import tests_around, upwards
from ds_migrate.syntax.nodes import code, targets, walk
from ds_migrate.syntax.source import SourceFile

_LEAVES = (cst.Return, cst.Raise, cst.Continue, cst.Break)


def is_always_set(text: str, statement: cst.CSTNode, file: SourceFile) -> bool:
    """Return whether lines above a statement set a name, an attribute or an item on each way to it.

    What reads it does too, as it would have failed before. Conditions that hold at the statement hold above it.
    """
    tests = frozenset(code(test) for test, holds in tests_around(file, statement) if holds)
    inner = statement
    if _sets(statement, text, tests):
        return True
    for outer in file.ancestors(statement):
        if isinstance(outer, (cst.IndentedBlock, cst.Module)):
            place = next((i for i, line in enumerate(outer.body) if line is inner), 0)
            if any(_sets(line, text, tests) for line in outer.body[:place]):
                return True
        if isinstance(outer, (cst.For, cst.With)) and _names(outer, text):
            return True
        if isinstance(outer, cst.FunctionDef):
            break
        inner = outer
    return False


def _sets(node: cst.CSTNode, text: str, tests: frozenset[str]) -> bool:
    """Return whether a statement or a block sets an expression whichever way it takes, or leaves."""
    if isinstance(node, cst.If):
        other = node.orelse
        is_both = code(node.test) in tests or (other is not None and _sets(other, text, tests))
        return is_both and _sets(node.body, text, tests)
    if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
        return node.name.value == text
    if isinstance(node, (cst.BaseSuite, cst.SimpleStatementLine)):
        return any(_sets(each, text, tests) for each in node.body)
    if isinstance(node, (cst.Else, cst.For, cst.While, cst.With, cst.Try)):
        return _names(node, text) or _sets(node.body, text, tests)
    return isinstance(node, _LEAVES) or _is_in(node, text)


def _names(node: cst.CSTNode, text: str) -> bool:
    """Return whether the head of a loop or of a block has an expression."""
    head = [node.target, node.iter] if isinstance(node, cst.For) else node.items if isinstance(node, cst.With) else []
    return any(_is_in(part, text) for part in head)


def _is_in(node: cst.CSTNode, text: str) -> bool:
    parts = (part for part in walk(node) if isinstance(part, (cst.Name, cst.Attribute, cst.Subscript)))
    return any(code(part).replace("'", '"') == text.replace("'", '"') for part in parts)


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
