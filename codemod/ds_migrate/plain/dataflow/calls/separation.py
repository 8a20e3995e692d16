"""Functions and methods whose calls make separate values: what they make is handed on by return alone."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from ds_migrate.plain.dataflow.calls.copies import SEPARATED
from ds_migrate.plain.dataflow.expressions import Expressions
from ds_migrate.plain.dataflow.values import NOTHING, Kind, Value, are_all, of_kind
from ds_migrate.plain.reachability import reachable
from ds_migrate.syntax.nodes import positional, targets
from ds_migrate.syntax.source import SourceFile


def separable_functions(files: Iterable[SourceFile], expressions: Expressions) -> frozenset[int]:
    """Return the functions, by identity, that are called several times and hand on what they make by return alone."""
    calls: dict[int, int] = {}
    for file in files:
        for call in file.nodes(cst.Call):
            for value in map(expressions.classes.as_method, expressions.values(call.func, file)):
                if value.kind in (Kind.FUNCTION, Kind.METHOD):
                    calls[value.key] = calls.get(value.key, 0) + 1
    separation = _Separation(expressions)
    return frozenset(key for key, count in calls.items() if count > 1 and separation.hands_on(key))


class _Separation:
    """The references that are kept to what functions make."""

    def __init__(self, expressions: Expressions) -> None:
        self._expressions = expressions
        self._only_uses: dict[tuple[int, str], bool] = {}  # by function and parameter

    def hands_on(self, key: int) -> bool:
        """Return whether a function hands on what it makes by return alone."""
        expressions = self._expressions
        known = expressions.variables.function_of(key)
        if known is None:
            return False
        file, function = known
        if file.nodes(cst.Yield, cst.Global, cst.Nonlocal, below=function):
            return False
        returned = reachable(expressions.variables.held((key, "return")), expressions.items.all_of)
        made = frozenset(v for v in returned if v.kind in SEPARATED and expressions.copies.is_made_in(v, key))
        return bool(made) and not any(
            self._is_kept(node, file)
            for node in file.nodes(cst.Name, cst.Call, cst.Tuple, cst.List, cst.Dict, below=function.body)
            if expressions.values(node, file) & made
        )

    def _is_kept(self, node: cst.CSTNode, file: SourceFile) -> bool:
        """Return whether something beside the function may have a reference to what a node in it is."""
        around = file.parent(node)
        if isinstance(around, (cst.Assign, cst.AnnAssign)):
            return around.value is node and not all(_is_local(target) for target in targets(around))
        if isinstance(around, cst.Arg):
            call = file.parent(around)
            callees = self._expressions.values(call.func, file) if isinstance(call, cst.Call) else NOTHING
            if of_kind(callees, Kind.CLASS, Kind.METHOD, Kind.INSTANCE):
                return True
            functions = of_kind(callees, Kind.FUNCTION)
            return isinstance(call, cst.Call) and not all(self._is_only_used(f, around, call) for f in functions)
        return False

    def _is_only_used(self, function: Value, arg: cst.Arg, call: cst.Call) -> bool:
        """Return whether a function keeps no reference to an argument: it asks it for attributes, or gives it back."""
        node = self._expressions.variables.node(function)
        assert isinstance(node, cst.FunctionDef)
        index = next(i for i, given in enumerate(call.args) if given is arg)
        names = [arg.keyword.value] if arg.keyword is not None else [p.name.value for p in positional(node)[index:][:1]]
        if len(names) != 1 or any(given.star for given in call.args):
            return False
        question = function.key, names[0]
        if question not in self._only_uses:
            self._only_uses[question] = False  # while it is looked into: a function that calls itself may keep it
            file = self._expressions.variables.file(function)
            self._only_uses[question] = all(
                file.function(use) is node and self._is_use(use, file)
                for use in file.nodes(cst.Name, below=node.body)
                if use.value == names[0]
            )
        return self._only_uses[question]

    def _is_use(self, name: cst.Name, file: SourceFile) -> bool:
        around = file.parent(name)
        if isinstance(around, cst.Arg):
            call = file.parent(around)
            callees = self._expressions.values(call.func, file) if isinstance(call, cst.Call) else NOTHING
            return are_all(callees, Kind.EXTERNAL) or (bool(callees) and not self._is_kept(name, file))
        if isinstance(around, cst.Attribute):
            return around.value is name
        return isinstance(around, (cst.Return, cst.AssignTarget))


def _is_local(target: cst.BaseExpression) -> bool:
    if isinstance(target, (cst.Tuple, cst.List)):
        return all(_is_local(element.value) for element in target.elements)
    if isinstance(target, cst.Subscript):  # an item of what the function makes
        return isinstance(target.value, cst.Name)
    return isinstance(target, cst.Name)
