"""Branches of several ``if`` statements with the same test."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.scopes import names_in
from ds_migrate.syntax.branches import tests_around
from ds_migrate.syntax.nodes import dotted, targets
from ds_migrate.syntax.one_line import expression_text
from ds_migrate.syntax.source import SourceFile

_CONSTANT_CALLS = frozenset({"is_available", "is_enabled"})  # methods that return the same each time


def never_meet(file: SourceFile, one: cst.CSTNode, other: cst.CSTNode) -> bool:
    """Return whether one of two nodes of a function runs only where a test holds, and the other where it does not."""
    around, opposite = _tests(file, one), _tests(file, other)
    return any(opposite.get(test, holds) is not holds for test, holds in around.items())


def is_set_once(name: str, file: SourceFile) -> bool:
    """Return whether a name, and what it is an attribute of, have one value at most in a file."""
    return len(_lines_setting(name, file)) <= 1


def _lines_setting(name: str, file: SourceFile) -> list[cst.Assign | cst.AnnAssign | cst.AugAssign]:
    lines = file.nodes(cst.Assign, cst.AnnAssign, cst.AugAssign)
    return [line for line in lines if any(dotted(t) in (name, name.partition(".")[0]) for t in targets(line))]


def _is_fixed(name: str, test: cst.CSTNode, file: SourceFile) -> bool:
    """Return whether a name has one value, as far as a test sees: only ``__init__`` sets it for another method."""
    if is_set_once(name, file):
        return True
    lines = _lines_setting(name, file) if name.startswith("self.") else []
    makers = {_function_name(line, file) for line in lines}
    return makers == {"__init__"} and _function_name(test, file) not in ("__init__", None)


def _function_name(node: cst.CSTNode, file: SourceFile) -> str | None:
    function = file.function(node)
    return function.name.value if function is not None else None


def _tests(file: SourceFile, node: cst.CSTNode) -> dict[str, bool]:
    """Return the tests around a node in its function that have one result there, and whether each holds."""
    found: dict[str, bool] = {}
    for test, holds in tests_around(file, node):
        if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            test, holds = test.expression, not holds
        if _is_settled(test, file):
            found.setdefault(expression_text(test), holds)
    return found


def _is_settled(test: cst.BaseExpression, file: SourceFile) -> bool:
    """Return whether a test has the same result each time: it is one name, or compares and joins names and literals."""
    name = dotted(test)
    if name is not None:
        return _is_fixed(name, test, file)
    names = _names_of(test)
    return names is not None and all(_is_fixed(name, test, file) and not _is_set_in_loop(name, file) for name in names)


def _is_set_in_loop(name: str, file: SourceFile) -> bool:
    """Return whether rounds of a loop may give a name other values."""
    loops = file.nodes(cst.For, cst.While)
    return any(isinstance(loop, cst.For) and name in names_in(loop.target) for loop in loops) or any(
        dotted(target) == name
        for loop in loops
        for line in file.nodes(cst.Assign, cst.AnnAssign, cst.AugAssign, below=loop)
        for target in targets(line)
    )


def _names_of(test: cst.BaseExpression) -> list[str] | None:
    """Return the names and attributes that a test depends on; None where there may be others."""
    parts: list[cst.BaseExpression] = []
    if isinstance(test, cst.BooleanOperation):
        parts = [test.left, test.right]
    elif isinstance(test, cst.Comparison):
        parts = [test.left, *(target.comparator for target in test.comparisons)]
    elif isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        parts = [test.expression]
    elif isinstance(test, cst.Call) and isinstance(test.func, cst.Attribute) and not test.args:
        parts = [test.func.value] if test.func.attr.value in _CONSTANT_CALLS else []
    elif isinstance(test, (cst.SimpleString, cst.Integer)):
        return []
    elif (name := dotted(test)) is not None:
        return [] if name in ("None", "True", "False") else [name]
    found = [_names_of(part) for part in parts]
    known = [names for names in found if names is not None]
    return [name for names in known for name in names] if parts and len(known) == len(found) else None
