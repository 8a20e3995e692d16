"""Expressions that are a module, or one module after another of a loop."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.scopes import names_in
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.recognition.parameters.module_values import is_layer_of_torch, may_be_module, part_held
from ds_migrate.plain.recognition.parameters.owners import Owners
from ds_migrate.syntax.nodes import dotted, walk
from ds_migrate.syntax.source import SourceFile


def is_loop_variable(name: cst.Name, file: SourceFile, flow: Flow, owners: Owners) -> bool:
    """Return whether a name is one module after another of a loop that the optimizer is made behind."""
    loops = [outer.for_in if isinstance(outer, cst.BaseComp) else outer for outer in owners.around]
    if any(isinstance(loop, (cst.For, cst.CompFor)) and name.value in names_in(loop.target) for loop in loops):
        return False  # an optimizer is made for each
    return any(
        name.value == dotted(part)
        for loop in flow.scopes(file).nodes(name, cst.For)
        if not any(outer is loop for outer in owners.around)
        for part in walk(loop.target)
    )


def whole_of(node: cst.BaseExpression, file: SourceFile, flow: Flow) -> cst.BaseExpression:
    """Return what a parameter is an attribute of, or of a part of: the model of ``model.layers[0].weight``."""
    while isinstance(node, (cst.Attribute, cst.Subscript)):
        node = node.value
        values = flow.values(node, file)
        if values != of_kind(values, Kind.PART, Kind.EXTERNAL):
            break
    return node


def is_module(node: cst.BaseExpression, file: SourceFile, flow: Flow, owners: Owners) -> bool:
    """Return whether an expression is a module, a part of one, or one module after another of a loop."""
    if isinstance(node, cst.Name) and is_loop_variable(node, file, flow, owners):
        return True
    values = flow.values(node, file)
    if not isinstance(node, (cst.Name, cst.Attribute)) or not of_kind(values, Kind.MODULE, Kind.OBJECT):
        return isinstance(node, cst.Name) and part_held(node, file, flow) is not None
    return may_be_module(values, flow) or all(is_layer_of_torch(value) for value in values)
