"""The names of engines: where an optimizer is held, its engine is held beside it.

A function that gets an optimizer to step it gets the engine instead, and finds the optimizer in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import libcst as cst

from ds_migrate.plain.dataflow.calls.idle_functions import idle_functions
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, Variable, of_kind
from ds_migrate.plain.decisions.naming.free_names import FreeNames, free_in, last_part, named_like
from ds_migrate.plain.decisions.naming.unnamed_engines import is_kept_in_module, is_of_module, may_hold_another
from ds_migrate.plain.recognition.creation.containers import Item, item_at
from ds_migrate.plain.recognition.facts import Site
from ds_migrate.syntax.nodes import code, dotted, parameters, set_values, targets
from ds_migrate.syntax.source import SourceFile

_K = TypeVar("_K")
_V = TypeVar("_V")
_REORDERS = ("reverse", "sort", "pop", "insert", "remove", "clear", "popitem", "update")


class UntracedError(Exception):
    """No name for an engine can be found at ``node``."""

    def __init__(self, message: str, file: SourceFile, node: cst.CSTNode) -> None:
        super().__init__(message)
        self.file, self.node = file, node


class KeptInModuleError(UntracedError):
    """A module holds the optimizer: it cannot hold the engine, which would be one of its parts."""


@dataclass(frozen=True, eq=False)
class Passed:
    """A parameter of a function that is an engine from now on.

    Attributes:
        name: the new one.
        is_optional: whether a call leaves it out, or gives None.
    """

    file: SourceFile
    function: cst.FunctionDef
    parameter: str
    name: str
    is_optional: bool = False


@dataclass(frozen=True, eq=False)
class Kept:
    """An assignment of an optimizer to an attribute, beside which the engine is kept too."""

    file: SourceFile
    statement: cst.BaseStatement
    attribute: str  # as written: self.engine
    value: cst.BaseExpression


class EngineNames:
    """The names of engines in each file. Names are chosen once, when they are first asked for.

    Attributes:
        at_site: where an engine is made.
        at_variable: where a variable holds its optimizer.
        passed: parameters that are engines now, by the variable of the optimizer.
        kept: assignments beside which engines are kept, by the same.
        arguments: those that are engines now, by the identity of the argument.
        keywords: the names of the parameters that such arguments are for now, by the same.
        rebound: the variables that may hold an optimizer which was made before the last one of a site.
        in_modules: the variables of optimizers that modules keep, whose engines only the optimizers lead to.
    """

    def __init__(self, sites: Sequence[Site], flow: Flow) -> None:
        self._flow = flow
        self.at_site: dict[Site, str] = {}
        self.passed: dict[Variable, Passed] = {}
        self.kept: dict[Variable, Kept] = {}
        self.arguments: dict[int, tuple[SourceFile, cst.Arg, str]] = {}
        self.keywords: dict[int, str] = {}
        self.at_variable: dict[Variable, str] = {}
        self._free = FreeNames(flow)
        self._unnamed: dict[int, str] = {}  # engines of optimizers that are arguments, by the call that makes them
        self.in_modules = {site.variable for site in sites if any(is_kept_in_module(one, flow) for one in site.all)}
        self.rebound = {site.variable for site in sites if may_hold_another(site, flow)}
        for site in sites:
            name = self._free.at(site, sites, is_attribute=site.variable not in self.in_modules)
            if site.variable in self.in_modules or site.clause:
                self.at_site |= dict.fromkeys(site.all, name)
                continue
            if isinstance(site.target, cst.Attribute):
                name = f"{dotted(site.target.value)}.{name}"
            self.at_site[site] = name
            self.at_variable[site.variable] = name
            for other in site.again:
                owner = f"{dotted(other.target.value)}." if isinstance(other.target, cst.Attribute) else ""
                self.at_site[other] = f"{owner}{last_part(name)}"
            if site.new_name:
                self._unnamed[id(site.target)] = name

    def at(self, node: cst.BaseExpression, file: SourceFile) -> str:
        """Return the expression of the engine whose optimizer an expression is.

        Raises:
            UntracedError: no name leads to it.
        """
        held = _checkpoint(self.arguments), _checkpoint(self.keywords), _checkpoint(self.at_variable)
        undo = [_checkpoint(self.passed), _checkpoint(self.kept), *held]
        try:
            return self._find(node, file)
        except UntracedError:
            for undo_one in undo:
                undo_one()
            raise

    def _find(self, node: cst.BaseExpression, file: SourceFile) -> str:
        if id(node) in self._unnamed:
            return self._unnamed[id(node)]
        item = item_at(node, file, self._flow)
        if item is not None and item.variable in self.at_variable:
            return self._of_item(item, node, file)
        variable = self._flow.variable(node, file)
        if variable in self.in_modules or is_of_module(node, file, self._flow):
            raise KeptInModuleError(f"{code(node)} is an attribute of a module", file, node)
        if variable is None or dotted(node) is None:
            raise UntracedError("the optimizer is not held by a name or an attribute", file, node)
        if variable in self.at_variable:
            known = self.at_variable[variable]
            if any(variable == site.variable and not self._is_of(variable, site) for site in self.at_site):
                raise UntracedError("it may also hold an optimizer of another engine", file, node)
            if variable in self.rebound:
                raise UntracedError("it may hold an optimizer that was made before the last one", file, node)
            return f"{dotted(node.value)}.{last_part(known)}" if isinstance(node, cst.Attribute) else known
        if isinstance(node, cst.Name):
            scope = self._flow.scopes(file).owner(node.value, node)
            if isinstance(scope, cst.FunctionDef) and any(p.name.value == node.value for p in parameters(scope)):
                return self._pass(scope, node.value, variable, file)
            return self._alias(node, file)
        assert isinstance(node, cst.Attribute)
        return self._keep(node, variable, file)

    def _is_of(self, variable: Variable, site: Site) -> bool:
        """Return whether a variable holds the optimizers of a site, and none that comes from elsewhere."""
        return of_kind(self._flow.held(variable), Kind.OPTIMIZER) <= site.optimizers

    def _of_item(self, item: Item, node: cst.BaseExpression, file: SourceFile) -> str:
        """Return the engine of an item of a container, where it can be reached."""
        site = next(site for site in self.at_site if site.variable == item.variable)
        name = self.at_site[site]
        is_same = self._flow.variable(item.container, file) == self._flow.variable(site.target, site.file)
        is_same &= self._flow.values(node, file) <= site.optimizers and not self._is_reordered(item.variable[0])
        if is_same and isinstance(item.container, cst.Attribute):
            return f"{dotted(item.container.value)}.{last_part(name)}"
        if is_same and file is site.file:
            return name
        raise UntracedError("its container is handed on or changed", file, node)

    def _is_reordered(self, container: int) -> bool:
        """Return whether the program moves items of a container, known by its identity, to other places."""
        return any(
            any(value.key == container for value in self._flow.values(node.value, file))
            for file in self._flow.files.values()
            for name in _REORDERS
            for node in file.attributes_by_name.get(name, ())
        )

    def _pass(self, function: cst.FunctionDef, parameter: str, variable: Variable, file: SourceFile) -> str:
        """Let a function take the engine in the place of an optimizer, and its callers give it."""
        name = self._free_in(function, named_like(parameter.lower() if parameter.isupper() else parameter), file)
        self.at_variable[variable] = name
        idle = idle_functions(self._flow)
        known = self._flow.callers.of(function)
        calls = [each for each in known if not idle.hold(each[1], each[0])] or known
        if not calls:
            raise UntracedError(f"no call of {function.name.value}() is in this program", file, function)
        self.passed[variable] = Passed(file, function, parameter, name)
        is_optional = False
        for caller, call in calls:
            arg = self._flow.given(call, function, parameter, caller)
            if arg is None or dotted(arg.value) == "None":
                is_optional = True
                continue
            if arg.star:
                raise UntracedError(f"{function.name.value}() is called with * or **", caller, call)
            self.keywords[id(arg)] = name
            self.arguments[id(arg)] = (caller, arg, self._find(arg.value, caller))
            given = self._flow.variable(arg.value, caller)
            is_optional |= given in self.passed and self.passed[given].is_optional
        self.passed[variable] = replace(self.passed[variable], is_optional=is_optional)
        return name

    def _free_in(self, function: cst.FunctionDef, wish: str, file: SourceFile) -> str:
        """Return a free name for an engine that a function is given, beside those that it makes, reads or is given."""
        names: list[cst.Name] = file.nodes(cst.Name, below=function)
        read = {self._flow.variable(name, file) for name in names}
        others = {passed.name for passed in self.passed.values() if passed.function is function}
        others |= {name for one, name in self.at_site.items() if one.function is function or one.variable in read}
        return free_in(function, wish, file, others)

    def _alias(self, node: cst.Name, file: SourceFile) -> str:
        assigned = [
            n for n in self._flow.scopes(file).nodes(node, cst.Assign, cst.AnnAssign)
            if any(isinstance(t, cst.Name) and t.value == node.value for t, _ in set_values(n))
        ]  # fmt: skip
        is_unpacked = any(isinstance(targets(line)[0], (cst.Tuple, cst.List)) for line in assigned)
        if len(assigned) == 1 and isinstance(assigned[0].value, (cst.Name, cst.Attribute)) and not is_unpacked:
            variable = self._flow.variable(assigned[0].value, file)
            if any(site.variable == variable and site.is_changed for site in self.at_site):
                raise UntracedError(f"{node.value} may be an optimizer that another one has replaced", file, node)
            return self._find(assigned[0].value, file)
        raise UntracedError(f"{node.value} is bound in a way that cannot be followed", file, node)

    def _keep(self, node: cst.Attribute, variable: Variable, file: SourceFile) -> str:
        """Let an object that is given an optimizer keep its engine too."""
        found = []
        for other, assign in self._flow.nodes(cst.Assign, cst.AnnAssign):
            for target in targets(assign):
                if isinstance(target, cst.Attribute) and self._flow.variable(target, other) == variable:
                    found.append((other, assign, target))
        if len(found) != 1 or dotted(found[0][2]) is None or found[0][1].value is None:
            raise UntracedError(f"{dotted(node)} is bound in a way that cannot be followed", file, node)
        other, assign, target = found[0]
        name = self._free.attribute(variable, named_like(node.attr.value), other)
        self.at_variable[variable] = f"{dotted(target.value)}.{name}"
        value = assign.value
        assert value is not None
        self._find(value, other)
        self.kept[variable] = Kept(other, other.statement(assign), self.at_variable[variable], value)
        return f"{dotted(node.value)}.{name}"


def _checkpoint(held: dict[_K, _V]) -> Callable[[], None]:
    """Return a function that takes back what is put into a dict from now on."""
    before = dict(held)

    def undo() -> None:
        held.clear()
        held.update(before)

    return undo
