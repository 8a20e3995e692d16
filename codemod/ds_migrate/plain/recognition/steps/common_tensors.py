"""Tensors that all ranks hold alike once gradients are averaged: parameters and their gradients."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.containers.iteration import taken_from
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.scopes import names_in
from ds_migrate.plain.dataflow.values import Kind, are_all
from ds_migrate.plain.recognition.steps.weight_writes import WeightWrites
from ds_migrate.syntax.nodes import called_name, dotted, indices_of, last_name, targets
from ds_migrate.syntax.source import SourceFile

_MODULES = frozenset({"modules", "children"})
_ASKS = frozenset({"isinstance", "hasattr", "type"})  # of a module: its class, or what it has
_NAMED = frozenset({"named_parameters", "named_modules", "named_children"})


class CommonTensors:
    """The parameters and gradients that a program names as such, and the names that modules have for them.

    Args:
        flow: of the program.
        are_averaged: whether gradients are those of all ranks.
    """

    def __init__(self, flow: Flow, are_averaged: bool = True) -> None:
        self._flow = flow
        self._are_averaged = are_averaged
        self._writes = WeightWrites(flow)

    def is_common(self, node: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether an expression is the same on all ranks: a parameter, a gradient, a name, a class."""
        if self._writes.is_gradient(node, file):
            return self._are_averaged
        if isinstance(node, cst.Name):
            return self._taken(node, file) in ("parameters", "named_parameters", "params", "name")
        if isinstance(node, cst.Call) and dotted(node.func) in _ASKS and isinstance(node.args[0].value, cst.Name):
            return self._taken(node.args[0].value, file) != ""
        return isinstance(node, cst.Attribute) and self._is_part(node, file)

    def _is_part(self, node: cst.Attribute, file: SourceFile) -> bool:
        """Return whether an attribute is a parameter of a module."""
        if node.attr.value not in self._writes.names or not self._is_always_parameter(node.attr.value):
            return False
        if are_all(self._flow.values(node.value, file), Kind.MODULE, Kind.PART):
            return True
        return isinstance(node.value, cst.Name) and self._taken(node.value, file) in (*_MODULES, *_NAMED)

    def _is_always_parameter(self, name: str) -> bool:
        """Return whether the program sets no attribute of this name to anything else than a parameter."""
        return all(
            isinstance(node.value, cst.Call) and last_name(node.value.func) == "Parameter"
            for file, node in self._flow.nodes(cst.Assign, cst.AnnAssign)
            for target in targets(node)
            if isinstance(target, cst.Attribute) and target.attr.value == name
        )

    def _taken(self, node: cst.Name, file: SourceFile) -> str:
        """Return the method whose results the loop around a name takes it from; "name" for the names among them."""
        loops = [
            loop
            for loop in self._flow.scopes(file).nodes(node, cst.For, cst.CompFor)
            if node.value in names_in(loop.target) and _is_around(loop, node, file)
        ]
        if not loops:
            return ""
        loop = max(loops, key=file.position)
        if any(node.value in names_in(line.target) for line in file.nodes(cst.AssignTarget, below=loop)):
            return ""
        for part, container in taken_from(loop.target, loop.iter):
            if node.value in names_in(part):
                method = self._method(container, file)
                names = names_in(part)
                if method in _NAMED and isinstance(part, cst.Tuple) and len(names) == 2:
                    return "name" if node.value == names[0] else method
                return method if isinstance(part, cst.Name) and method not in _NAMED else ""
        return ""

    def _method(self, container: cst.BaseExpression, file: SourceFile) -> str:
        """Return the method whose results a container has, through a name that is assigned once; "" for others."""
        if isinstance(container, cst.Call):
            is_list = dotted(container.func) in ("list", "tuple") and len(container.args) == 1
            return self._method(container.args[0].value, file) if is_list else called_name(container)
        if isinstance(container, cst.Subscript):
            indices = list(indices_of(container))[:1]
            is_group = any(isinstance(i, cst.SimpleString) and i.evaluated_value == "params" for i in indices)
            return "params" if is_group else ""
        if isinstance(container, cst.ListComp) and isinstance(container.elt, cst.Name):
            return self._taken(container.elt, file)
        if isinstance(container, cst.Name):
            made = self._flow.scopes(file).assigned(container)
            return self._method(made[0], file) if len(made) == 1 and not isinstance(made[0], cst.Name) else ""
        return ""


def _is_around(loop: cst.For | cst.CompFor, node: cst.Name, file: SourceFile) -> bool:
    """Return whether a loop is around a name, or the name is in what a comprehension makes."""
    around: cst.CSTNode | None = loop
    while isinstance(around, cst.CompFor):
        around = file.parent(around)
    return any(outer is around for outer in file.ancestors(node))
