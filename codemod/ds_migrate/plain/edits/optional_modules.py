"""Modules that a program makes under a condition: an engine holds them where they are there."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.branches.set_names import is_always_set
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
    return not is_always_set(module, statement, file)


def _sets(line: cst.Assign | cst.AnnAssign, module: str) -> bool:
    return any(_same(target, module) for target in targets(line))


def _same(target: cst.CSTNode, module: str) -> bool:
    if isinstance(target, (cst.Tuple, cst.List)):
        return any(_same(element.value, module) for element in target.elements)
    return code(target).replace("'", '"') == module.replace("'", '"')
