"""Modules that a program makes under a condition: an engine holds them where they are there."""

from __future__ import annotations

import libcst as cst

from ds_migrate.syntax.branches import tests_around
from ds_migrate.syntax.nodes import code, dotted, single_index, targets, walk
from ds_migrate.syntax.source import SourceFile


def listed(module: str, statement: cst.BaseStatement, file: SourceFile) -> str:
    """Return a module as an element of a list behind a statement, with a test where it may be missing."""
    if module.startswith("*"):
        return module
    node = cst.parse_expression(module)
    test = _test_of(node)
    if test is None or not _may_be_missing(module, statement, file):
        return module
    return f"*([{module}] if {test} else [])"


def _test_of(node: cst.BaseExpression) -> str | None:
    """Return a test whether a name, an attribute or an item with a literal key is there; None for other expressions."""
    if isinstance(node, cst.Name):
        return f'"{node.value}" in locals()'
    if isinstance(node, cst.Attribute) and dotted(node) is not None:
        return f'hasattr({code(node.value)}, "{node.attr.value}")'
    index = single_index(node)
    if isinstance(node, cst.Subscript) and isinstance(index, cst.SimpleString) and dotted(node.value) is not None:
        return f"{code(index)} in {code(node.value)}"
    return None


def _may_be_missing(module: str, statement: cst.BaseStatement, file: SourceFile) -> bool:
    """Return whether the function of a statement sets an expression, but not on each way to the statement."""
    function = file.function(statement)
    lines = file.nodes(cst.Assign, cst.AnnAssign, below=function or file.module)
    if function is not None and any(p.name.value == module for p in walk(function.params) if isinstance(p, cst.Param)):
        return False
    if not any(file.function(line) is function and _sets(line, module) for line in lines):
        return False
    tests = frozenset(code(test) for test, holds in tests_around(file, statement) if holds)
    inner: cst.CSTNode = statement
    for outer in (statement, *file.ancestors(statement)):
        block = getattr(outer, "body", ())
        if isinstance(block, (list, tuple)) and inner is not outer:
            before = block[: next((i for i, each in enumerate(block) if each is inner), 0)]
            if any(_always_sets(each, module, tests) for each in [*before, inner]):
                return False
        if outer is function:
            break
        inner = outer
    return True


def _always_sets(node: cst.CSTNode, module: str, tests: frozenset[str]) -> bool:
    """Return whether a statement, or a block, sets an expression whichever way it takes where these conditions hold.

    So does what reads it, which would have failed before, and what leaves the function.
    """
    if isinstance(node, (cst.Assign, cst.AnnAssign)) and _sets(node, module):
        return True
    if isinstance(node, cst.BaseSmallStatement):
        return isinstance(node, (cst.Raise, cst.Return)) or any(
            code(part) == module for part in walk(node) if isinstance(part, (cst.Name, cst.Attribute, cst.Subscript))
        )
    if isinstance(node, cst.If):
        other = node.orelse
        is_both = code(node.test) in tests or (other is not None and _always_sets(other, module, tests))
        return is_both and _always_sets(node.body, module, tests)
    if isinstance(node, (cst.Else, cst.With, cst.Try)):
        return _always_sets(node.body, module, tests)
    if isinstance(node, (cst.SimpleStatementLine, cst.IndentedBlock)):
        return any(_always_sets(each, module, tests) for each in node.body)
    return False


def _sets(line: cst.Assign | cst.AnnAssign, module: str) -> bool:
    return any(_same(target, module) for target in targets(line))


def _same(target: cst.CSTNode, module: str) -> bool:
    if isinstance(target, (cst.Tuple, cst.List)):
        return any(_same(element.value, module) for element in target.elements)
    return code(target).replace("'", '"') == module.replace("'", '"')
