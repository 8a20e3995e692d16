"""Values of functions that are called several times: each call makes a separate one.

``teacher, student = make_net(), make_net()`` are two modules that one node of the program makes. They are separated by
the calls that return them, where nothing but these calls can reach them.
"""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst

from ds_migrate.plain.dataflow.values import Kind, Value, Values
from ds_migrate.plain.dataflow.variables import Variables
from ds_migrate.syntax.source import SourceFile

Call = tuple[SourceFile, cst.Call]

SEPARATED = (
    Kind.MODULE, Kind.OBJECT, Kind.OPTIMIZER, Kind.SCHEDULE, Kind.LOADER, Kind.SEQUENCE, Kind.MAPPING, Kind.PART,
)  # fmt: skip
_DEPTH = 3  # calls of calls of calls: values of more are one value
_MOST = 500


class Copies:
    """The copies of values, one for each call of the functions that are separated."""

    def __init__(self, variables: Variables, evaluate: Callable[[cst.CSTNode, SourceFile], Values]) -> None:
        self._variables = variables
        self._evaluate = evaluate
        self.functions: frozenset[int] = frozenset()
        self._keys: dict[tuple[int, int], int] = {}
        self._origins: dict[int, tuple[int, SourceFile, cst.Call]] = {}
        self._makers: dict[int, int] = {}  # the function whose call has made each copy
        self._around: dict[int, frozenset[int]] = {}  # what is around the node or call that makes a value, by its key
        self._alive: list[object] = []  # whose identities are keys of copies

    def of(self, value: Value, function: int, file: SourceFile, call: cst.Call) -> Value:
        """Return the copy of a value that a call of a function returns; the value itself where it is not made there."""
        if function not in self.functions or value.kind not in SEPARATED or not self.is_made_in(value, function):
            return value
        at = id(call), value.key
        if at not in self._keys:
            if len(self.calls(value)) >= _DEPTH or len(self._keys) >= _MOST:
                return value
            self._alive.append(object())
            key = self._keys[at] = id(self._alive[-1])
            self._origins[key] = value.key, file, call
            self._makers[key] = function
            self._variables.add_node(key, self._variables.file(value), self._variables.node(value))
        return Value(value.kind, self._keys[at], value.name, value.of)

    def all_of(self, values: Values, file: SourceFile, call: cst.Call) -> Values:
        """Return values of a function as they are where a call returns them."""
        functions = [v.key for v in self._evaluate(call.func, file) if v.kind in (Kind.FUNCTION, Kind.METHOD)]
        for function in functions:
            values = frozenset(self.of(value, function, file, call) for value in values)
        return values

    def along(self, copy: Value, values: Values) -> Values:
        """Return what a copied value holds as the call of the copy returns it.

        The call is not evaluated: what it is written on may be made of the copy itself.
        """
        _, file, call = self._origins[copy.key]
        return frozenset(self.of(value, self._makers[copy.key], file, call) for value in values)

    def origin(self, value: Value) -> tuple[Value, SourceFile, cst.Call] | None:
        """Return what a value is a copy of, and the call that made it one; None where it is none."""
        if value.key not in self._origins:
            return None
        key, file, call = self._origins[value.key]
        return Value(value.kind, key, value.name, value.of), file, call

    def calls(self, value: Value) -> list[Call]:
        """Return the calls that a copy has come through, the innermost first."""
        found: list[Call] = []
        while (origin := self.origin(value)) is not None:
            value, file, call = origin
            found.insert(0, (file, call))
        return found

    def may_be_one(self, value: Value, other: Value) -> bool:
        """Return whether two values may be the same object."""
        one, two = self.calls(value), self.calls(other)
        if self._first(value) != self._first(other):
            return False
        return all(a is b for (_, a), (_, b) in zip(one, two, strict=False))

    def _first(self, value: Value) -> Value:
        while (origin := self.origin(value)) is not None:
            value = origin[0]
        return value

    def is_made_in(self, value: Value, function: int) -> bool:
        """Return whether a function, by identity, makes a value, or the copy of one."""
        if value.key not in self._around:
            calls = self.calls(value)
            file, node = calls[-1] if calls else (self._variables.file(value), self._variables.node(value))
            self._around[value.key] = frozenset(map(id, file.ancestors(node)))
        return function in self._around[value.key]
