"""Tests whether there is an object: all ranks have one, or none has, although its value differs by rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.syntax.nodes import dotted, parameters, set_values
from ds_migrate.syntax.source import SourceFile

if TYPE_CHECKING:
    from ds_migrate.plain.dataflow.by_rank.rank_expressions import RankExpressions

_OBJECTS = (
    cst.BaseNumber, cst.BaseString, cst.BaseList, cst.Tuple, cst.BaseDict, cst.BaseSet, cst.BinaryOperation,
    cst.UnaryOperation, cst.Comparison, cst.BaseComp,
)  # fmt: skip
_MAKERS = ("torch.", "numpy.", "copy.")  # libraries whose functions return objects
_METHODS = frozenset({"clone", "detach", "cpu", "copy", "item", "numpy", "state_dict", "to", "float", "mean", "sum"})
_DEPTH = 4  # calls that lead to a line


def is_none_test(node: cst.CSTNode) -> bool:
    """Return whether an expression is ``x is None`` or ``x is not None``."""
    if not isinstance(node, cst.Comparison) or len(node.comparisons) != 1:
        return False
    (target,) = node.comparisons
    return isinstance(target.operator, (cst.Is, cst.IsNot)) and dotted(target.comparator) == "None"


class NoneTests:
    """The tests for None of a program that all ranks answer alike, as far as its lines show.

    Args:
        values: that differ by rank.
    """

    def __init__(self, values: RankExpressions, flow: Flow) -> None:
        self._values = values
        self._flow = flow
        self._open: set[tuple[int, str]] = set()  # variables that are being looked into, and may depend on themselves

    def is_shared(self, test: cst.Comparison, file: SourceFile) -> bool:
        """Return whether a comparison asks all ranks alike whether something is None."""
        return (
            is_none_test(test) and isinstance(test.left, (cst.Name, cst.Attribute)) and self._is_alike(test.left, file)
        )

    def _is_alike(self, node: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether an expression is None on all ranks or on none."""
        if isinstance(node, _OBJECTS) or dotted(node) in ("None", "True", "False"):
            return True
        if isinstance(node, cst.IfExp):
            parts = (node.body, node.orelse)
            return not self._values.differs(node.test, file) and all(self._is_alike(part, file) for part in parts)
        if isinstance(node, cst.Call):
            callees = self._flow.values(node.func, file)
            is_class = bool(callees) and callees == of_kind(callees, Kind.CLASS)
            is_maker = bool(callees) and all(v.kind is Kind.EXTERNAL and v.name.startswith(_MAKERS) for v in callees)
            is_method = isinstance(node.func, cst.Attribute) and node.func.attr.value in _METHODS
            return is_class or is_maker or (is_method and not of_kind(callees, Kind.METHOD, Kind.FUNCTION))
        if isinstance(node, cst.Name):
            return self._is_alike_by_name(node, file)
        return isinstance(node, cst.Attribute) and self._is_alike_attribute(node)

    def _is_alike_by_name(self, name: cst.Name, file: SourceFile) -> bool:
        scopes = self._flow.scopes(file)
        scope = scopes.owner(name.value, name)
        key = id(scope), name.value
        if key in self._open:
            return True
        bindings = [n for n in scopes.bindings.get(name.value, ()) if scopes.owner(name.value, n) is scope]
        given = list(self._given(name, scope, file)) if isinstance(scope, cst.FunctionDef) else []
        if not (bindings or given) or None in given:
            return False
        self._open.add(key)
        found = all(self._sets_alike(node, name.value, file) for node in bindings)
        found = found and all(place is not None and self._is_alike(*place) for place in given)
        self._open.discard(key)
        return found

    def _given(
        self, name: cst.Name, function: cst.FunctionDef, file: SourceFile
    ) -> list[tuple[cst.BaseExpression, SourceFile] | None]:
        """Return what calls give for a parameter; None for what is not known."""
        param = next((p for p in parameters(function) if p.name.value == name.value), None)
        if param is None:
            return []
        found: list[tuple[cst.BaseExpression, SourceFile] | None] = []
        for caller, call in self._flow.callers.of(function):
            arg = self._flow.given(call, function, name.value, caller)
            if arg is not None:
                found.append((arg.value, caller) if not arg.star else None)
            else:
                found.append((param.default, file) if param.default is not None else None)
        return found or [None]

    def _is_alike_attribute(self, node: cst.Attribute) -> bool:
        """Return whether all lines that set attributes of this name do so alike; False where none does."""
        name = node.attr.value
        if (0, name) in self._open:
            return True
        if dotted(node) is None or self._values.are_known(self._values.attributes.read_by_name(name)):
            return False
        self._open.add((0, name))
        found = [
            self._sets_alike(line, name, home)
            for home, attribute in self._flow.attributes(name)
            if isinstance(line := home.parent(attribute), (cst.AssignTarget, cst.AnnAssign, cst.AugAssign))
            and line.target is attribute
        ]
        self._open.discard((0, name))
        return bool(found) and all(found)

    def _sets_alike(self, target: cst.CSTNode, name: str, file: SourceFile) -> bool:
        """Return whether all ranks come to a line that sets a name, and set it to an object or to None alike."""
        line = file.parent(target) if isinstance(target, cst.AssignTarget) else target
        if not isinstance(line, (cst.Assign, cst.AnnAssign)):
            return False
        values = [value for one, value in set_values(line) if (dotted(one) or "").rpartition(".")[2] == name]
        return (
            bool(values)
            and all(value is not None and self._is_alike(value, file) for value in values)
            and self._is_reached_alike(line, file, _DEPTH)
        )

    def _is_reached_alike(self, node: cst.CSTNode, file: SourceFile, depth: int) -> bool:
        """Return whether no condition that differs, and no error of one rank, decides whether a line runs."""
        if not depth or any(isinstance(outer, cst.Try) for outer in file.ancestors(node)):
            return False
        if self._values.depends(node, file):
            return False
        function = file.function(node)
        calls = self._flow.callers.of(function) if function is not None else ()
        return all(self._is_reached_alike(call, home, depth - 1) for home, call in calls)
