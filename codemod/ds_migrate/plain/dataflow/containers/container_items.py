"""The items of sequences and mappings, each of which is a variable."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from ds_migrate.plain.dataflow.calls.copies import Copies
from ds_migrate.plain.dataflow.lookup.looked_up_names import LookedUpNames
from ds_migrate.plain.dataflow.values import NOTHING, Kind, Value, Values, deeper, of_kind
from ds_migrate.plain.dataflow.variables import Variables

_APPENDED = "[append"
_NAMESPACE = ".__dict__"


class ContainerItems:
    """The items of the containers of a program."""

    def __init__(self, variables: Variables, copies: Copies, names: LookedUpNames) -> None:
        self._variables = variables
        self._copies = copies
        self._names = names

    def all_of(self, value: Value) -> Values:
        """Return everything that a sequence or mapping, or the namespace of a file or library, may hold."""
        if value.kind is Kind.FILE:
            return self._names.defined_in(value, None)
        if value.kind is Kind.EXTERNAL and value.name.endswith(_NAMESPACE):
            return self._names.attributes(frozenset({value._replace(name=value.name.removesuffix(_NAMESPACE))}), None)
        return self._variables.derived(("items", value.key), lambda: self._find_all(value))

    def all_in(self, containers: Iterable[Value]) -> Values:
        """Return everything that some sequences or mappings may hold."""
        return NOTHING.union(*map(self.all_of, containers))

    def _find_all(self, value: Value) -> Values:
        names = [name for name in self._variables.names(value.key) if name[:1] == "["]
        held = NOTHING.union(*[self._variables.held((value.key, name)) for name in names])
        origin = self._copies.origin(value)
        if origin is None:
            return held
        return held | self._copies.along(value, self.all_of(origin[0]))

    def named(self, value: Value, name: str) -> Values:
        """Return one item of a sequence or mapping, or an attribute, by its variable's name."""
        held = self._variables.held((value.key, name))
        origin = self._copies.origin(value)
        if origin is None:
            return held
        return held | self._copies.along(value, self.named(origin[0], name))

    def _grows(self, value: Value) -> bool:
        """Return whether items of a container are not known by their index: some are appended, or made in a loop."""
        origin = self._copies.origin(value)
        if origin is not None and self._grows(origin[0]):
            return True
        return any(name == "[]" or name.startswith(_APPENDED) for name in self._variables.names(value.key))

    def by_key(self, value: Value, name: str) -> Values:
        """Return the items of a sequence or mapping that a known key or index may mean."""
        return self.all_of(value) if self._grows(value) else self.named(value, name)

    def unpacked(self, value: Value, name: str) -> Values:
        """Return the items that a name in a tuple gets: of loaders and data sets that a loop makes, each may be any.

        Not so modules and optimizers: one value would be several, of which a program steps one.
        """
        made = self.all_of(value) if self._grows(value) else NOTHING
        return self.named(value, name) | of_kind(made, Kind.LOADER, Kind.INSTANCE)

    def at(self, containers: Values, index: cst.BaseExpression) -> Values:
        """Return the items of containers, or of modules and libraries, that an index may mean."""
        found: set[Value] = set()
        for value in containers:
            if value.kind in (Kind.MAPPING, Kind.SEQUENCE):
                if isinstance(index, (cst.SimpleString, cst.Integer)):
                    found |= self.by_key(value, item_name(index.evaluated_value))
                else:
                    found |= self.all_of(value)
            elif value.kind is Kind.FILE:
                found |= self._names.defined_in(value, index)
            elif value.kind is Kind.EXTERNAL:
                found |= deeper(value, f"{value.name.removesuffix(_NAMESPACE)}.?")
            elif value.kind in (Kind.MODULE, Kind.PART):
                found |= deeper(value, f"{value.name}[]")
        return frozenset(found)


def item_name(key: object) -> str:
    """Return the name of the variable that an item of a container is."""
    return f"[{key!r}]"


def appended(node: cst.CSTNode) -> str:
    """Return the name of the variable that an item is which a node puts into a container by an unknown index."""
    return f"{_APPENDED} {id(node)}]"
