"""The scopes of a file: which function or module a name belongs to."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import libcst as cst

from ds_migrate.plain.dataflow.values import Variable
from ds_migrate.plain.reachability import reachable
from ds_migrate.syntax.nodes import (
    dotted,
    elements,
    last_name,
    parameter,
    parameters,
    set_values,
    targets,
    without_index,
)
from ds_migrate.syntax.source import SourceFile


class Scopes:
    """Names of one file, resolved to the scope that binds them."""

    def __init__(self, file: SourceFile) -> None:
        self.file = file
        self._variables: dict[tuple[int, str], Variable] = {}

    @cached_property
    def _bound(self) -> dict[int, set[str]]:
        """The names that each function binds itself, by its identity."""
        bound: dict[int, set[str]] = {}
        lent: dict[int, set[str]] = {}
        for function in self.file.nodes(cst.FunctionDef):
            names = {param.name.value for param in parameters(function)}
            for star in (function.params.star_arg, function.params.star_kwarg):
                if isinstance(star, cst.Param):
                    names.add(star.name.value)
            bound[id(function)] = names
        for node in self.file.nodes(cst.Global, cst.Nonlocal):
            function = self.file.function(node)
            if function is not None:
                lent.setdefault(id(function), set()).update(item.name.value for item in node.names)
        for name, nodes in self.bindings.items():
            for function in map(self.file.function, nodes):
                if function is not None:
                    bound[id(function)].add(name)
        for key, names in lent.items():
            bound[key] -= names
        return bound

    @cached_property
    def bindings(self) -> dict[str, list[cst.CSTNode]]:
        """The nodes that bind each name, in any scope."""
        found: list[tuple[str, cst.CSTNode]] = []
        for node in self.file.nodes(
            cst.AssignTarget, cst.AnnAssign, cst.AugAssign, cst.For, cst.CompFor, cst.NamedExpr
        ):
            found += [(name, node) for name in names_in(node.target)]
        for node in self.file.nodes(cst.AsName):
            found += [(name, node) for name in names_in(node.name)]
        for node in self.file.nodes(cst.FunctionDef, cst.ClassDef):
            outer = self.file.parent(node)
            if outer is not None:
                found.append((node.name.value, outer))
        for node in self.file.names.import_nodes:
            if not isinstance(node.names, cst.ImportStar):
                found += [(alias.evaluated_alias or alias.evaluated_name.split(".")[0], node) for alias in node.names]
        by_name: dict[str, list[cst.CSTNode]] = {}
        for name, node in found:
            by_name.setdefault(name, []).append(node)
        return by_name

    def function_of(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        """Return the function whose body holds the node; a default or decorator belongs to the scope around it."""
        inner: cst.CSTNode = node
        for outer in self.file.ancestors(node):
            if isinstance(outer, cst.FunctionDef) and inner is outer.body:
                return outer
            inner = outer
        return None

    def owner(self, name: str, at: cst.CSTNode) -> cst.CSTNode:
        """Return the function that binds a name as it is read at a node, or the module."""
        for outer in self.file.ancestors(at):
            if type(outer) is cst.FunctionDef and name in self._bound[id(outer)]:
                return outer
        return self.file.module

    def function_of_parameter(self, name: cst.CSTNode) -> cst.FunctionDef | None:
        """Return the function of which a name is a parameter; None for other nodes, ``*args`` and ``**kwargs``."""
        scope = self.owner(name.value, name) if isinstance(name, cst.Name) else None
        is_parameter = isinstance(scope, cst.FunctionDef) and parameter(scope, dotted(name)) is not None
        return scope if isinstance(scope, cst.FunctionDef) and is_parameter else None

    def nodes(self, name: cst.Name | cst.Attribute, *kinds: type[cst.CSTNode]) -> list[Any]:
        """Return the nodes of the file at which a name is the variable that it is here; for an attribute, all."""
        if isinstance(name, cst.Attribute):
            return self.file.nodes(*kinds)
        scope = self.owner(name.value, name)
        return [node for node in self.file.nodes(*kinds, below=scope) if self.owner(name.value, node) is scope]

    @cached_property
    def _set(self) -> dict[str, list[tuple[cst.CSTNode, cst.BaseExpression]]]:
        """The lines that set a name or attribute, as it is spelled, with the values; "" is all that has no name."""
        found: dict[str, list[tuple[cst.CSTNode, cst.BaseExpression]]] = {}
        for line in self.file.nodes(cst.Assign, cst.AnnAssign):
            for target, value in set_values(line):
                if value is not None:
                    found.setdefault(dotted(target) or "", []).append((line, value))
        return found

    def assigned(self, name: cst.Name | cst.Attribute) -> list[cst.BaseExpression]:
        """Return what a name is assigned where it is the variable that it is here.

        For an attribute, this is everywhere, but for one of ``self`` in classes that share no object with the one here.
        """
        lines = self._set.get(dotted(name) or "", ())
        if not lines:
            return []
        if isinstance(name, cst.Attribute):
            here = self.file.class_around(name) if dotted(name.value) == "self" else None
            own = [value for line, value in lines if self._may_share(here, self.file.class_around(line))]
            return own or [value for _, value in lines]
        scope = self.owner(name.value, name)
        return [value for line, value in lines if self.owner(name.value, line) is scope]

    @cached_property
    def _unpacked(self) -> dict[str, list[tuple[cst.Assign, int]]]:
        """The lines that give each name an element of their value, with its index."""
        found: dict[str, list[tuple[cst.Assign, int]]] = {}
        for line in self.file.nodes(cst.Assign):
            for target in targets(line):
                for index, element in enumerate(elements(target)) if isinstance(target, cst.Tuple) else ():
                    found.setdefault(dotted(element) or "", []).append((line, index))
        return found

    def unpacked(self, name: cst.Name) -> list[tuple[cst.BaseExpression, int | None]]:
        """Return the values of which a name is given an element where it is the variable that it is here, by index."""
        scope, lines = self.owner(name.value, name), self._unpacked.get(name.value, ())
        return [(line.value, index) for line, index in lines if self.owner(name.value, line) is scope]

    def _may_share(self, one: cst.ClassDef | None, other: cst.ClassDef | None) -> bool:
        """Return whether one object may be of both classes: of one that is built on both, or on one of them."""
        if one is None or other is None or one is other:
            return True
        keys = {id(one), id(other)}
        return any(keys <= family for family in self._families)

    @cached_property
    def _families(self) -> list[set[int]]:
        """Each class of the file with those of the file that it is built on, by identity."""
        by_name = {node.name.value: node for node in self.file.nodes(cst.ClassDef)}

        def bases(name: str) -> list[str]:
            return [base for each in by_name[name].bases if (base := last_name(without_index(each.value))) in by_name]

        return [{id(by_name[one]) for one in reachable([name], bases)} for name in by_name]

    def variable(self, name: str, at: cst.CSTNode) -> Variable:
        """Return the variable that a name means at a node."""
        found = self._variables.get((id(at), name))
        if found is None:
            found = self._variables[id(at), name] = id(self.owner(name, at)), name
        return found


def names_in(target: cst.CSTNode) -> list[str]:
    """Return the names that a target of an assignment or a loop binds."""
    if isinstance(target, cst.Name):
        return [target.value]
    if isinstance(target, (cst.Tuple, cst.List)):
        return [name for element in target.elements for name in names_in(element.value)]
    return []


def is_label(node: cst.CSTNode, file: SourceFile) -> bool:
    """Return whether a name is that of an attribute or of an argument, and no variable."""
    around = file.parent(node)
    return (isinstance(around, cst.Attribute) and around.attr is node) or (
        isinstance(around, cst.Arg) and around.keyword is node
    )
