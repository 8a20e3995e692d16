"""Variables of a program with the values that they hold, and the nodes that make these."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.values import NOTHING, Kind, Value, Values, Variable, of_kind
from ds_migrate.syntax.source import SourceFile

_MOST_PARTS = 100  # that one variable holds: two assignments in a loop double them in each round


class Variables:
    """The values of each variable, and the node of each value."""

    def __init__(self) -> None:
        self.has_changed = False
        self._held: dict[Variable, Values] = {}
        self._names: dict[int, set[str]] = {}  # of the variables of each owner
        self._nodes: dict[int, tuple[SourceFile, cst.CSTNode]] = {}

    def held(self, variable: Variable) -> Values:
        """Return what a variable may hold."""
        return self._held.get(variable, NOTHING)

    def names(self, owner: int) -> list[str]:
        """Return the names of the variables of a scope, class or container."""
        return list(self._names.get(owner, ()))

    def add(self, variable: Variable, values: Values) -> None:
        """Let a variable hold further values."""
        known = self._held.get(variable, NOTHING)
        if len(known) >= _MOST_PARTS:
            values -= of_kind(values, Kind.PART, Kind.EXTERNAL)
        if not values <= known:
            self._held[variable] = known | values
            self._names.setdefault(variable[0], set()).add(variable[1])
            self.has_changed = True

    def clear(self) -> None:
        """Forget what the variables hold."""
        self._held.clear()
        self._names.clear()

    def node(self, value: Value) -> cst.CSTNode:
        """Return the node that makes a value."""
        return self._nodes[value.key][1]

    def file(self, value: Value) -> SourceFile:
        """Return the file of the node that makes a value."""
        return self._nodes[value.key][0]

    def node_of(self, key: int) -> tuple[SourceFile, cst.CSTNode] | None:
        """Return the node that makes the values of a key, with its file."""
        return self._nodes.get(key)

    def add_node(self, key: int, file: SourceFile, node: cst.CSTNode) -> None:
        """Set the node that makes the values of a key."""
        self._nodes[key] = file, node

    def make(self, kind: Kind, node: cst.CSTNode, file: SourceFile, name: str = "", of: int = 0) -> Value:
        """Return the value that a node makes."""
        self._nodes.setdefault(id(node), (file, node))
        return Value(kind, id(node), name, of)
