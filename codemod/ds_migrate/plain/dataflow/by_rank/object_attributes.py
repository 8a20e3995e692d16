"""Attributes of objects as variables: those that methods set on their own object are not those of other classes."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.classes import is_decorated
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Variable
from ds_migrate.syntax.nodes import parameters
from ds_migrate.syntax.source import SourceFile

_ANY, _UNKNOWN = -1, 0  # owners: of what any object has, and of what an object of an unknown class has
_AUTOGRAD = "torch.autograd.Function"  # torch makes the object that its static methods are given, for this class alone


class ObjectAttributes:
    """The variables that attributes are where they are read, and where they are set.

    Classes that share a base are one, as a method of each may be of an object of the other. An attribute of anything
    but ``self`` may be of an object of any class.
    """

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._owners: dict[int, int] = {}  # by function

    def read(self, node: cst.Attribute, file: SourceFile) -> tuple[Variable, ...]:
        """Return the variables that an attribute may have its value from."""
        name, owner = f".{node.attr.value}", self._owner(node, file)
        return ((_ANY, name),) if owner == _UNKNOWN else ((owner, name), (_UNKNOWN, name))

    def written(self, node: cst.Attribute, file: SourceFile) -> tuple[Variable, ...]:
        """Return the variables that hold what an attribute is set to."""
        return (self._owner(node, file), f".{node.attr.value}"), (_ANY, f".{node.attr.value}")

    def read_by_name(self, name: str) -> Variable:
        """Return the variable that ``getattr()`` of any object reads."""
        return _ANY, f".{name}"

    def written_by_name(self, name: str) -> tuple[Variable, ...]:
        """Return the variables that ``setattr()`` of any object sets."""
        return (_UNKNOWN, f".{name}"), (_ANY, f".{name}")

    def _owner(self, node: cst.Attribute, file: SourceFile) -> int:
        """Return the classes whose object a method is called on, by identity, for an attribute of that object."""
        if not isinstance(node.value, cst.Name):
            return _UNKNOWN
        function = self._flow.scopes(file).owner(node.value.value, node.value)
        if not isinstance(function, cst.FunctionDef):
            return _UNKNOWN
        if id(function) not in self._owners:
            self._owners[id(function)] = self._find_owner(function, file)
        first = parameters(function)[:1]
        is_own = [p.name.value for p in first] == [node.value.value] and not self._flow.scopes(file).assigned(
            node.value
        )
        return self._owners[id(function)] if is_own else _UNKNOWN

    def _find_owner(self, function: cst.FunctionDef, file: SourceFile) -> int:
        around = file.parent(file.parent(function) or function)
        if not isinstance(around, cst.ClassDef):
            return _UNKNOWN
        relatives = self._flow.classes.relatives(id(around))
        if is_decorated(function, "staticmethod") and _AUTOGRAD not in self._flow.classes.external_bases(id(around)):
            return _UNKNOWN
        return min(relatives) if all(map(self._flow.classes.has_known_bases, relatives)) else _UNKNOWN
