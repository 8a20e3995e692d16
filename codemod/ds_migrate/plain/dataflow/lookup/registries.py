"""Registries of a program: objects whose decorators keep classes and functions, to find them by name later.

All instances of a class of the program are one. Those of registries are separated by the names that hold them, for what
their decorators are given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import libcst as cst

from ds_migrate.plain.dataflow.scopes import Scopes
from ds_migrate.plain.dataflow.values import Kind, Value, Values, Variable
from ds_migrate.syntax.source import SourceFile


class Registries:
    """The classes and functions of a program, by the registries whose decorators they have.

    Args:
        scopes: those of each file, by its identity.
        origin: returns the variable that an imported one is in its home.
    """

    def __init__(self, scopes: Mapping[int, Scopes], origin: Callable[[Variable], Variable]) -> None:
        self._scopes = scopes
        self._origin = origin
        self._registered: dict[int, set[Variable]] = {}

    def add(self, definition: cst.FunctionDef | cst.ClassDef, file: SourceFile) -> None:
        """Add a class or function with its decorators."""
        for decorator in definition.decorators:
            registry = self._registry_of(decorator.decorator, file)
            if registry is not None:
                self._registered.setdefault(id(definition), set()).add(registry)

    def found_in(self, call: cst.Call, values: Values, file: SourceFile) -> Values:
        """Return those of the values that a call returns which its registry keeps; all of them where it is none."""
        registry = self._registry_of(call.func, file) if isinstance(call.func, cst.Attribute) else None
        if registry is None or not any(registry in known for known in self._registered.values()):
            return values
        return frozenset(v for v in values if registry in self._registered.get(_definition_of(v), {registry})) or values

    def _registry_of(self, node: cst.BaseExpression, file: SourceFile) -> Variable | None:
        """Return the variable that holds the object on which a method is called; None for everything else."""
        func = node.func if isinstance(node, cst.Call) else node
        owner = func.value if isinstance(func, cst.Attribute) else None
        if not isinstance(owner, cst.Name):
            return None
        return self._origin(self._scopes[id(file)].variable(owner.value, owner))


def _definition_of(value: Value) -> int:
    """Return the identity of the class or function that a value is, or is made by; 0 where that is unknown."""
    if value.kind in (Kind.CLASS, Kind.FUNCTION, Kind.INSTANCE):
        return value.key
    return value.of if value.kind is Kind.MODULE else 0
