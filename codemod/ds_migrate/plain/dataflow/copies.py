"""Values of functions that are called several times: each call makes a separate one.

``teacher, student = make_net(), make_net()`` are two modules that one node of the program makes. They are separated by
the calls that return them, where nothing but these calls can reach them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import libcst as cst

from ds_migrate.plain.dataflow.values import Kind, Value, Values
from ds_migrate.syntax.nodes import targets
from ds_migrate.syntax.source import SourceFile

if TYPE_CHECKING:
    from ds_migrate.plain.dataflow.flow import Flow

Call = tuple[SourceFile, cst.Call]

_SEPARATED = (
    Kind.MODULE, Kind.OBJECT, Kind.OPTIMIZER, Kind.SCHEDULE, Kind.LOADER, Kind.SEQUENCE, Kind.MAPPING, Kind.PART,
)  # fmt: skip
_DEPTH = 3  # calls of calls of calls: values of more are one value
_MOST = 500


class Copies:
    """The copies of values, one for each call of the functions that are separated."""

    def __init__(self) -> None:
        self.functions: frozenset[int] = frozenset()
        self._keys: dict[tuple[int, int], int] = {}
        self._origins: dict[int, tuple[int, SourceFile, cst.Call]] = {}
        self._alive: list[object] = []  # whose identities are keys of copies

    def of(self, value: Value, function: int, file: SourceFile, call: cst.Call, flow: Flow) -> Value:
        """Return the copy of a value that a call of a function returns; the value itself where it is not made there."""
        if (
            function not in self.functions
            or value.kind not in _SEPARATED
            or not self._is_made_in(value, function, flow)
        ):
            return value
        at = id(call), value.key
        if at not in self._keys:
            if len(self.calls(value)) >= _DEPTH or len(self._keys) >= _MOST:
                return value
            self._alive.append(object())
            key = self._keys[at] = id(self._alive[-1])
            self._origins[key] = value.key, file, call
            flow.add_node(key, flow.file(value), flow.node(value))
        return replace(value, key=self._keys[at])

    def all_of(self, values: Values, file: SourceFile, call: cst.Call, flow: Flow) -> Values:
        """Return values of a function as they are where a call returns them."""
        functions = [v.key for v in flow.values(call.func, file) if v.kind is Kind.FUNCTION]
        for function in functions:
            values = frozenset(self.of(value, function, file, call, flow) for value in values)
        return values

    def origin(self, value: Value) -> tuple[Value, SourceFile, cst.Call] | None:
        """Return what a value is a copy of, and the call that made it one; None where it is none."""
        if value.key not in self._origins:
            return None
        key, file, call = self._origins[value.key]
        return replace(value, key=key), file, call

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

    def _is_made_in(self, value: Value, function: int, flow: Flow) -> bool:
        calls = self.calls(value)
        file, node = calls[-1] if calls else (flow.file(value), flow.node(value))
        return any(id(outer) == function for outer in file.ancestors(node))


def separable_functions(flow: Flow) -> frozenset[int]:
    """Return the functions, by identity, that are called several times and hand on what they make by return alone."""
    calls: dict[int, int] = {}
    for file in flow.files.values():
        for call in file.nodes(cst.Call):
            for value in flow.values(call.func, file):
                if value.kind is Kind.FUNCTION:
                    calls[value.key] = calls.get(value.key, 0) + 1
    return frozenset(key for key, count in calls.items() if count > 1 and _hands_on(key, flow))


def _hands_on(key: int, flow: Flow) -> bool:
    known = flow.node_of(key)
    if known is None:
        return False
    file, function = known
    if not isinstance(function, cst.FunctionDef) or file.nodes(cst.Yield, cst.Global, cst.Nonlocal, below=function):
        return False
    returned = _with_items(flow.held((key, "return")), flow)
    made = frozenset(
        v for v in returned
        if v.kind in _SEPARATED and any(outer is function for outer in flow.file(v).ancestors(flow.node(v)))
    )  # fmt: skip
    return bool(made) and not any(
        _is_kept(node, file, flow)
        for node in file.nodes(cst.Name, cst.Call, cst.Tuple, cst.List, cst.Dict, below=function.body)
        if flow.values(node, file) & made
    )


def _with_items(values: Values, flow: Flow) -> Values:
    found, todo = set(values), list(values)
    while todo:
        for item in flow.items_of(todo.pop()) - found:
            found.add(item)
            todo.append(item)
    return frozenset(found)


def _is_kept(node: cst.CSTNode, file: SourceFile, flow: Flow) -> bool:
    """Return whether something beside the function may have a reference to what a node in it is."""
    around = file.parent(node)
    if isinstance(around, (cst.Assign, cst.AnnAssign)):
        return around.value is node and not all(_is_local(target) for target in targets(around))
    if isinstance(around, cst.Arg):
        call = file.parent(around)
        kinds = {v.kind for v in flow.values(call.func, file)} if isinstance(call, cst.Call) else set()
        return bool(kinds & {Kind.CLASS, Kind.METHOD, Kind.FUNCTION, Kind.INSTANCE})
    return False


def _is_local(target: cst.BaseExpression) -> bool:
    if isinstance(target, (cst.Tuple, cst.List)):
        return all(_is_local(element.value) for element in target.elements)
    if isinstance(target, cst.Subscript):  # an item of what the function makes
        return isinstance(target.value, cst.Name)
    return isinstance(target, cst.Name)
