"""The branches of conditions that nodes are in."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import libcst as cst

from ds_migrate.syntax.source import SourceFile


def parting(file: SourceFile, one: cst.CSTNode, other: cst.CSTNode) -> cst.If | cst.IfExp | None:
    """Return the condition of which two nodes are in different branches; None where something else is around both."""
    sides = {id(outer): inner for inner, outer in upwards(file, one)}
    for inner, outer in upwards(file, other):
        if id(outer) in sides:
            branches = {id(sides[id(outer)]), id(inner)}
            if isinstance(outer, (cst.If, cst.IfExp)) and branches == {id(outer.body), id(outer.orelse)}:
                return outer
            return None
    return None


def head_of(node: cst.BaseStatement, file: SourceFile) -> cst.BaseStatement:
    """Return the ``if`` whose ``elif`` a node is, else the node."""
    while isinstance(outer := file.parent(node), cst.If) and outer.orelse is node:
        node = outer
    return node


def tests_around(file: SourceFile, node: cst.CSTNode) -> Iterator[tuple[cst.BaseExpression, bool]]:
    """Yield the tests of each ``if`` around a node in its function, innermost first, and whether each holds there."""
    for inner, outer in upwards(file, node):
        if isinstance(outer, cst.FunctionDef):
            return
        if isinstance(outer, (cst.If, cst.IfExp)) and inner is not outer.test:
            yield outer.test, inner is outer.body


def upwards(file: SourceFile, node: cst.CSTNode) -> list[tuple[cst.CSTNode, cst.CSTNode]]:
    """Return a node and all around it, innermost first, each with what it is directly in."""
    chain = [node, *file.ancestors(node)]
    return list(pairwise(chain))
