"""Tensors of a program's own autograd: their ``backward()`` is none of torch's."""

from __future__ import annotations

from collections.abc import Collection

import libcst as cst

from ds_migrate.plain.dataflow.branches.latest_values import latest_value
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.syntax.nodes import operands
from ds_migrate.syntax.source import SourceFile

_ARITHMETIC = ("__add__", "__mul__", "__sub__")
_DEPTH = 6


def is_own_tensor(node: cst.BaseExpression, file: SourceFile, flow: Flow) -> bool:
    """Return whether an expression is a tensor of a class of the program, or made of one."""
    classes = flow.once(_tensor_classes)
    return bool(classes) and _is_made_of(classes, node, file, flow, _DEPTH)


def _is_made_of(classes: Collection[int], node: cst.BaseExpression, file: SourceFile, flow: Flow, depth: int) -> bool:
    if any(value.key in classes for value in of_kind(flow.values(node, file), Kind.INSTANCE)):
        return True
    if depth == 0:
        return False
    if isinstance(node, cst.Name):
        latest = latest_value(node, file, flow.scopes(file))
        made = flow.scopes(file).assigned(node) if latest is None else [latest]
        return bool(made) and all(_is_made_of(classes, value, file, flow, depth - 1) for value in made)
    parts: list[cst.BaseExpression] = []
    if isinstance(node, cst.Call):
        parts = operands(node)
    elif isinstance(node, cst.BinaryOperation):
        parts = [node.left, node.right]
    elif isinstance(node, cst.UnaryOperation):
        parts = [node.expression]
    return any(_is_made_of(classes, part, file, flow, depth - 1) for part in parts)


def _tensor_classes(flow: Flow) -> Collection[int]:
    """Return the classes with arithmetic and ``backward()`` that are not built on torch, by their identity."""
    classes = flow.classes
    return frozenset(
        id(node)
        for file, node in flow.nodes(cst.ClassDef)
        if classes.method(id(node), "backward") is not None
        and any(classes.method(id(node), name) is not None for name in _ARITHMETIC)
        and not any(name.startswith("torch") for name in classes.external_bases(id(node)))
    )
