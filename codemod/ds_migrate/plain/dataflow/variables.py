"""Variables of a program with the values that they hold, and the nodes that make these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import libcst as cst

from ds_migrate.plain.dataflow.values import NOTHING, Kind, Value, Values, Variable, of_kind
from ds_migrate.syntax.source import SourceFile

# Values of the kinds below in one variable: a helper that gets an item of any config by its key mixes all of them, and
# two assignments in a loop double parts in each round.
_MOST = 100
_MIXED = (Kind.PART, Kind.EXTERNAL, Kind.OBJECT, Kind.MAPPING, Kind.SEQUENCE)

_T = TypeVar("_T")
_Question = tuple[str, int] | tuple[str, int, str | int]  # its name, and what it is about
_Read = Variable | int | _Question  # an int: the names of the variables of an owner
_Reader = int | _Question


class Variables:
    """The values of each variable, and the node of each value.

    Attributes:
        has_changed: whether a variable was given a further value.
        reader: who reads variables from now on, a number, for :attr:`outdated`; None for nobody.
        outdated: the readers of variables that have changed since they read them.
    """

    def __init__(self) -> None:
        self.has_changed = False
        self.reader: _Reader | None = None
        self.outdated: set[_Reader] = set()
        self._readers: dict[_Read, set[_Reader]] = {}
        self._derived: dict[_Question, Any] = {}
        self._held: dict[Variable, Values] = {}
        self._names: dict[int, dict[str, None]] = {}  # of the variables of each owner, in their order
        self._nodes: dict[int, tuple[SourceFile, cst.CSTNode]] = {}

    def held(self, variable: Variable) -> Values:
        """Return what a variable may hold."""
        if self.reader is not None:
            self._readers.setdefault(variable, set()).add(self.reader)
        return self._held.get(variable, NOTHING)

    def names(self, owner: int) -> list[str]:
        """Return the names of the variables of a scope, class or container."""
        if self.reader is not None:
            self._readers.setdefault(owner, set()).add(self.reader)
        return list(self._names.get(owner, ()))

    def derived(self, question: _Question, answer: Callable[[], _T]) -> _T:
        """Return the answer to a question about variables, which is found again when one of them has changed."""
        if self.reader is not None:
            self._readers.setdefault(question, set()).add(self.reader)
        if question not in self._derived:
            reader, self.reader = self.reader, question
            self._derived[question] = answer()
            self.reader = reader
        found: _T = self._derived[question]
        return found

    def add(self, variable: Variable, values: Values) -> None:
        """Let a variable hold further values."""
        known = self._held.get(variable, NOTHING)
        if len(known) + len(values) > _MOST and len(known | values) > _MOST:
            values -= of_kind(values, *_MIXED)
        if not values <= known:
            self._held[variable] = known | values
            self.has_changed = True
            self._outdate(variable)
            names = self._names.setdefault(variable[0], {})
            if variable[1] not in names:
                names[variable[1]] = None
                self._outdate(variable[0])

    def clear(self) -> None:
        """Forget what the variables hold."""
        self._held.clear()
        self._names.clear()
        self.forget_derived()

    def forget_derived(self) -> None:
        """Forget all answers to questions about variables."""
        self._derived.clear()
        self._readers.clear()

    def _outdate(self, read: _Read) -> None:
        for reader in self._readers.pop(read, ()):
            if isinstance(reader, int):
                self.outdated.add(reader)
            elif reader in self._derived:
                del self._derived[reader]
                self._outdate(reader)

    def node(self, value: Value) -> cst.CSTNode:
        """Return the node that makes a value."""
        return self._nodes[value.key][1]

    def file(self, value: Value) -> SourceFile:
        """Return the file of the node that makes a value."""
        return self._nodes[value.key][0]

    def node_of(self, key: int) -> tuple[SourceFile, cst.CSTNode] | None:
        """Return the node that makes the values of a key, with its file."""
        return self._nodes.get(key)

    def function_of(self, key: int) -> tuple[SourceFile, cst.FunctionDef] | None:
        """Return the function that the values of a key are, with its file; None for everything else."""
        file, node = self._nodes.get(key, (None, None))
        return (file, node) if file is not None and isinstance(node, cst.FunctionDef) else None

    def class_of(self, key: int) -> tuple[SourceFile, cst.ClassDef] | None:
        """Return the class that the values of a key are, with its file; None for everything else."""
        file, node = self._nodes.get(key, (None, None))
        return (file, node) if file is not None and isinstance(node, cst.ClassDef) else None

    def place(self, value: Value) -> tuple[str, int]:
        """Return where a value is made, to sort by: the file, and the number of the node in it."""
        known = self._nodes.get(value.key)
        return ("", 0) if known is None else (str(known[0].path), known[0].number(known[1]))

    def add_node(self, key: int, file: SourceFile, node: cst.CSTNode) -> None:
        """Set the node that makes the values of a key."""
        self._nodes[key] = file, node

    def make(self, kind: Kind, node: cst.CSTNode, file: SourceFile, name: str = "", of: int = 0) -> Value:
        """Return the value that a node makes."""
        self._nodes.setdefault(id(node), (file, node))
        return Value(kind, id(node), name, of)
