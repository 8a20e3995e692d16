"""The calls of a program's functions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

import libcst as cst

from ds_migrate.plain.dataflow.calls.spawning import started
from ds_migrate.plain.dataflow.scopes import names_in
from ds_migrate.plain.dataflow.values import NOTHING, Kind, Value, Variable, of_kind
from ds_migrate.plain.reachability import reachable
from ds_migrate.syntax.branches import parting, upwards
from ds_migrate.syntax.nodes import called_name, dotted, parameter, walk
from ds_migrate.syntax.source import SourceFile

if TYPE_CHECKING:
    from ds_migrate.plain.dataflow.flow import Flow

_DEPTH = 3  # of the calls that a parameter is followed through
_REPEATS = (cst.For, cst.While, cst.ListComp, cst.GeneratorExp, cst.DictComp, cst.Lambda)


class Callers:
    """The calls of each function of a program; one that starts it in another process is one of them."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._calls: dict[int, list[tuple[SourceFile, cst.Call]]] = {}
        self._passes: dict[int, list[tuple[SourceFile, cst.Call]]] = {}  # of modules
        self._given: dict[Variable, list[tuple[cst.BaseExpression, SourceFile]]] = {}
        self._leading: dict[int, set[int]] = {}
        for file, call in flow.nodes(cst.Call):
            callees = flow.values(call.func, file)
            target = started(call, callees)
            if target is not None:
                callees = flow.values(target, file)
            callees = flow.chosen_by(call, file) | (NOTHING if flow.is_of_factory(call, file) else callees)
            for value in of_kind(callees, Kind.FUNCTION, Kind.METHOD):
                self._calls.setdefault(value.key, []).append((file, call))
            for value in of_kind(callees, Kind.CLASS, Kind.INSTANCE):
                method = flow.classes.method(value.key, "__init__" if value.kind is Kind.CLASS else "__call__")
                if method is not None:
                    self._calls.setdefault(method.key, []).append((file, call))
            for value in of_kind(callees, Kind.MODULE):
                method = flow.classes.method(value.of, "forward") if value.of else None
                if method is not None:
                    self._passes.setdefault(method.key, []).append((file, call))
                    if _trains(method, flow):
                        self._calls.setdefault(method.key, []).append((file, call))

    def of(self, function: cst.FunctionDef) -> Sequence[tuple[SourceFile, cst.Call]]:
        return self._calls.get(id(function), ())

    def given(self, name: cst.Name, file: SourceFile) -> Sequence[tuple[cst.BaseExpression, SourceFile]]:
        """Return what calls give for a name that is a parameter of the function around it."""
        function = file.function(name)
        if function is None:
            return ()
        parameter = id(function), name.value
        if parameter not in self._given:
            self._given[parameter] = [
                (arg, home)
                for home, call in self.of(function)
                for variable, arg in self._flow.passed(call, home) if variable == parameter
            ]  # fmt: skip
        return self._given[parameter]

    def inputs(self, name: cst.Name, file: SourceFile) -> list[tuple[cst.BaseExpression, SourceFile]]:
        """Return what calls give for a parameter, those of a module for one of its ``forward()`` among them."""
        function = file.function(name)
        passes = self._passes.get(id(function), ())
        found = ((variable, arg, home) for home, call in passes for variable, arg in self._flow.passed(call, home))
        of_passes = [(arg, home) for variable, arg, home in found if variable == (id(function), name.value)]
        return [*self.given(name, file), *of_passes]

    def sources(
        self, node: cst.Name | cst.Attribute, file: SourceFile
    ) -> Iterator[tuple[cst.BaseExpression, SourceFile]]:
        """Yield what a name or attribute is assigned, and what calls give for a name that is a parameter."""
        yield from ((value, file) for value in self._flow.scopes(file).assigned(node) if value is not node)
        if isinstance(node, cst.Name):
            yield from self.given(node, file)

    def ends(
        self, node: cst.BaseExpression, file: SourceFile, depth: int = 2 * _DEPTH
    ) -> Iterator[tuple[cst.BaseExpression, SourceFile]]:
        """Yield what an expression may be, through names, attributes, arguments and their default values.

        A parameter is one of them itself where nothing calls its function: code outside of the program may give it.
        """
        found = list(self.sources(node, file)) if isinstance(node, (cst.Name, cst.Attribute)) and depth else []
        function = self._flow.scopes(file).function_of_parameter(node) if depth else None
        param = parameter(function, dotted(node)) if function is not None else None
        found += [(param.default, file)] if param is not None and param.default is not None else []
        for value, home in found:
            yield from self.ends(value, home, depth - 1)
        if not found or (function is not None and not self.of(function)):
            yield node, file

    def variables(self, node: cst.BaseExpression, file: SourceFile, depth: int = _DEPTH) -> frozenset[Variable]:
        """Return the variable that an expression is, and for a parameter those that calls give for it."""
        variable = self._flow.variable(node, file)
        found = frozenset({variable} if variable is not None else ())
        given = self.given(node, file) if isinstance(node, cst.Name) and depth else ()
        return found.union(*(self.variables(value, home, depth - 1) for value, home in given))

    def reaches(self, key: int, function: cst.FunctionDef | None) -> bool:
        """Return whether a function, by its identity, is another one or calls it, also through others."""
        return function is not None and key in self._callers_of(id(function))

    def reaches_without(
        self, avoided: Collection[int], keys: Collection[int], function: cst.FunctionDef | None
    ) -> bool:
        """Return whether one of these functions, by identity, calls another one, through none of the avoided ones."""
        start = {id(function)} if function is not None else set()
        found = reachable(start - set(avoided), lambda key: self._calling(key) - set(avoided))
        return not set(keys).isdisjoint(found)

    def files_of(self, function: cst.FunctionDef | None) -> set[int]:
        """Return the files, by identity, from which a function is called, also through others."""
        keys = self._callers_of(id(function)) if function is not None else set()
        return {id(file) for key in keys for file, _ in self._calls.get(key, ())}

    def leading(self, file: SourceFile, function: cst.FunctionDef | None) -> set[int]:
        """Return the functions that lead to the lines of one, and the modules that do when they run, by identity."""
        if function is None:
            return {id(file.module)}
        keys = self._callers_of(id(function))
        calls = [place for key in keys for place in self._calls.get(key, ())]
        return keys | {id(caller.module) for caller, call in calls if caller.function(call) is None}

    def leading_to(
        self, other: cst.FunctionDef | None, file: SourceFile, function: cst.FunctionDef | None
    ) -> list[cst.Call]:
        """Return the calls in a function, with None in the module's own lines, that call another, also indirectly."""
        keys = self._callers_of(id(other)) if other is not None else ()
        calls = [call for key in keys for caller, call in self._calls.get(key, ()) if caller is file]
        return sorted((call for call in calls if file.function(call) is function), key=file.number)

    def _callers_of(self, key: int) -> set[int]:
        """Return a function and all that call it, however indirectly, by identity."""
        if key not in self._leading:
            self._leading[key] = set(reachable([key], self._calling))
        return self._leading[key]

    def _calling(self, key: int) -> set[int]:
        """Return the functions that call one, by identity."""
        callers = (file.function(call) for file, call in self._calls.get(key, ()))
        return {id(caller) for caller in callers if caller is not None}

    def may_run_often(self, file: SourceFile, node: cst.CSTNode) -> bool:
        """Return whether a call may run several times: it is in a loop, or in a function that runs several times."""
        reached: set[int] = set()
        while not is_repeated(file, node):
            function = file.function(node)
            calls = self.of(function) if function is not None else ()
            if function is None or len(calls) != 1 or id(function) in reached:
                return function is not None and (id(function) in reached or self.has_several(function))
            reached.add(id(function))
            file, node = calls[0]
        return True

    def has_several(self, function: cst.FunctionDef) -> bool:
        """Return whether a function has several calls, of which more than one may run."""
        return any(
            not (one_file is other_file and are_exclusive(one_file, one, other))
            for (one_file, one), (other_file, other) in combinations(self.of(function), 2)
        )

    def may_make_several(self, value: Value) -> bool:
        """Return whether the call that makes a value may make several."""
        place, calls = (self._flow.file(value), self._flow.node(value)), self._flow.copies.calls(value)
        if not calls:
            return self.may_run_often(*place)
        return any(is_repeated(file, node) for file, node in (place, *calls[:-1])) or self.may_run_often(*calls[-1])


def _trains(method: Value, flow: Flow) -> bool:
    """Return whether a method makes a step itself, as the ``forward()`` of a module that keeps its optimizer."""
    calls = flow.file(method).nodes(cst.Call, below=flow.node(method))
    return {"backward", "step"} <= {called_name(call) for call in calls}


def is_repeated(file: SourceFile, node: cst.CSTNode) -> bool:
    """Return whether a node is in a loop, or in something else that may run several times."""
    return any(
        isinstance(outer, _REPEATS) and not (isinstance(outer, cst.For) and inner is outer.iter)
        for inner, outer in upwards(file, node)
    )


def are_exclusive(file: SourceFile, one: cst.CSTNode, other: cst.CSTNode) -> bool:
    """Return whether two nodes are in different branches of one ``if``, outside of loops in it."""
    condition = parting(file, one, other)
    return condition is not None and not _is_for_each(condition, file)


def _is_for_each(node: cst.If | cst.IfExp, file: SourceFile) -> bool:
    """Return whether a condition depends on what a loop around it is for: each of its branches may run."""
    asked = {part.value for part in walk(node.test) if isinstance(part, cst.Name)}
    return any(
        asked & set(names_in(outer.target))
        for outer in file.ancestors(node)
        if isinstance(outer, (cst.For, cst.CompFor))
    )
