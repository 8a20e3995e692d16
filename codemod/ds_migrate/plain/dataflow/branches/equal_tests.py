"""Branches of several ``if`` statements that test the same name."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind
from ds_migrate.syntax.branches import tests_around
from ds_migrate.syntax.nodes import dotted, targets
from ds_migrate.syntax.source import SourceFile


def never_meet(file: SourceFile, one: cst.CSTNode, other: cst.CSTNode) -> bool:
    """Return whether one of two nodes of a function runs only where a name holds, and the other where it does not."""
    around, opposite = _tests(file, one), _tests(file, other)
    return any(opposite.get(name, holds) is not holds and is_set_once(name, file) for name, holds in around.items())


def is_set_once(name: str, file: SourceFile) -> bool:
    """Return whether a name, and what it is an attribute of, have one value at most in a file."""
    found = [
        n for n in file.nodes(cst.Assign, cst.AnnAssign, cst.AugAssign)
        if any(dotted(t) in (name, name.partition(".")[0]) for t in targets(n))
    ]  # fmt: skip
    return len(found) <= 1


def is_settled_attribute(
    one: cst.BaseExpression, file: SourceFile, other: cst.BaseExpression, other_file: SourceFile, flow: Flow
) -> bool:
    """Return whether two expressions are the same attribute of one object, which its maker alone assigns.

    Such are arguments of the command line, which the function that parses them completes.
    """
    if not isinstance(one, cst.Attribute) or not isinstance(other, cst.Attribute):
        return False
    held = flow.values(one.value, file)
    if len(held) != 1 or held != flow.values(other.value, other_file) or one.attr.value != other.attr.value:
        return False
    (value,) = held
    if value.kind is not Kind.OBJECT:
        return False
    makes = flow.file(value).function(flow.node(value))
    return all(
        makes is not None and each.function(line) is makes
        for each in flow.files.values()
        for line in each.nodes(cst.Assign, cst.AnnAssign, cst.AugAssign)
        for target in targets(line)
        if isinstance(target, cst.Attribute) and target.attr.value == one.attr.value
        if flow.values(target.value, each) & held
    )


def _tests(file: SourceFile, node: cst.CSTNode) -> dict[str, bool]:
    """Return the names that are tested around a node in its function, and whether each holds there."""
    found: dict[str, bool] = {}
    for test, holds in tests_around(file, node):
        if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            test, holds = test.expression, not holds
        name = dotted(test)
        if name is not None:
            found.setdefault(name, holds)
    return found
