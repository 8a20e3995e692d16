"""The flow of values through a program, until nothing more is found."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import libcst as cst

from ds_migrate.plain.dataflow.calls.arguments import Arguments
from ds_migrate.plain.dataflow.calls.callers import Callers
from ds_migrate.plain.dataflow.calls.separation import separable_functions
from ds_migrate.plain.dataflow.containers.records import fields_set_by
from ds_migrate.plain.dataflow.expressions import RESULTS_OF_UNKNOWN, UNKNOWN, Expressions
from ds_migrate.plain.dataflow.lookup.definitions import Definitions, Resolve
from ds_migrate.plain.dataflow.lookup.imported_modules import ImportedModules
from ds_migrate.plain.dataflow.lookup.registries import Registries
from ds_migrate.plain.dataflow.scopes import Scopes
from ds_migrate.plain.dataflow.statements import Statements
from ds_migrate.plain.dataflow.values import Kind, Value, Values, Variable, attribute_owner, of_kind
from ds_migrate.plain.dataflow.variables import Variables
from ds_migrate.syntax.source import SourceFile

_ROUNDS = 12
_T = TypeVar("_T")


@dataclass(frozen=True)
class Given:
    """A parameter for which the callers of a function, which are outside of the program, give something."""

    file: SourceFile
    function: cst.FunctionDef
    parameter: cst.Param


class Flow:
    """The values of every variable and expression of a program.

    Args:
        files: the files of the program.
        resolve: finds the file that an import means.
        given: parameters that get a separate object each.
        commands: modules, and the names of functions in them that are installed as commands.

    Attributes:
        values: returns what an expression may be.
        items_of: returns everything that a sequence or mapping may hold.
        held: returns what a variable may hold.
        node: returns the node that makes a value. file: returns the file of that.
        node_of: returns the node that makes the values of a key, with its file. function_of, class_of: the same for
            functions and classes alone.
        module_file: returns the file of the program that a module is.
        passed: yields the parameters that a call of the program's functions gives values to, with the expressions.
        given: returns the argument that a call gives for a parameter, or the star that may; None where it gives none.
        is_of_factory: returns whether a call makes what a factory returns to its callers.
    """

    def __init__(
        self,
        files: Mapping[Path, SourceFile],
        resolve: Resolve,
        given: Collection[Given] = (),
        commands: Collection[tuple[Path, str]] = (),
    ) -> None:
        self.files = files
        self._given = given
        self._commands = commands
        self._answers: dict[Hashable, Any] = {}
        # The library functions that calls may be of, with the calls, which keeps their ids: each part asks about all.
        self._external: dict[int, tuple[cst.Call, list[str]]] = {}
        self._scopes = {id(file): Scopes(file) for file in files.values()}
        self._variables = Variables()
        self._expressions = Expressions(self._scopes, self._variables, ImportedModules(files.values()))
        self._arguments = Arguments(self._expressions)
        self._statements = Statements(self._scopes, self._expressions, self._arguments)
        self.classes = self._expressions.classes
        self.copies = self._expressions.copies
        self._gives = [give for file in files.values() for give in self._statements.of(file)]
        self._definitions = Definitions(files, resolve, self._scopes, self._variables, self.classes)
        self.values = self._expressions.values
        self.items_of = self._expressions.items.all_of
        self.is_of_factory = self._expressions.factories.makes
        self.held, self.node, self.file = self._variables.held, self._variables.node, self._variables.file
        self.node_of = self._variables.node_of
        self.function_of, self.class_of = self._variables.function_of, self._variables.class_of
        self.passed, self.given = self._arguments.passed, self._arguments.given
        self.module_file = self._definitions.module_file
        self._settle()
        self.copies.functions = separable_functions(files.values(), self._expressions)
        if self.copies.functions:
            self._variables.clear()
            self._settle()
        self._expressions.has_settled = True

    def _settle(self) -> None:
        """Let values flow until nothing changes, at first without the results of calls that may still be found."""
        self._definitions.bind()
        registries = self._expressions.registries = Registries(self._scopes, self._definitions.origin)
        for file, node in self.nodes(cst.ClassDef, cst.FunctionDef):
            registries.add(node, file)
        for one in self._given:
            made = self._variables.make(Kind.OBJECT, one.parameter, one.file)
            self._variables.add((id(one.function), one.parameter.name.value), frozenset({made}))
        self._variables.forget_derived()
        self._variables.outdated = set(range(len(self._gives)))
        self._run_rounds()
        self._variables.add(RESULTS_OF_UNKNOWN, UNKNOWN)
        self._run_rounds()

    def _run_rounds(self) -> None:
        for _ in range(_ROUNDS):
            self._variables.has_changed = False
            self._run_round()
            if not self._variables.has_changed:
                break

    def _run_round(self) -> None:
        """Let those nodes give values that have read a variable which changed since."""
        variables = self._variables
        self._definitions.pass_on()
        for number, give in enumerate(self._gives):
            if number in variables.outdated:
                variables.outdated.remove(number)
                variables.reader = number
                for variable, values in give():
                    variables.add(variable, values)
        variables.reader = None

    @cached_property
    def callers(self) -> Callers:
        """The calls of each function of the program."""
        return Callers(self)

    def nodes(self, *kinds: type[cst.CSTNode]) -> Iterator[tuple[SourceFile, Any]]:
        """Yield the nodes of some kinds in all files, each with its file."""
        return ((file, node) for file in self.files.values() for node in file.nodes(*kinds))

    def attributes(self, name: str) -> Iterator[tuple[SourceFile, cst.Attribute]]:
        """Yield the attributes with a name in all files, each with its file."""
        return ((file, node) for file in self.files.values() for node in file.attributes_by_name.get(name, ()))

    def is_command(self, function: cst.FunctionDef) -> bool:
        """Return whether a function is installed as a command, by which a program begins."""
        known = [(self.files[path], name) for path, name in self._commands if path in self.files]
        return self._holds(known, function)

    def is_offered(self, definition: cst.FunctionDef | cst.ClassDef) -> bool:
        """Return whether a package has a function or class among its names: code outside the program may call it."""
        packages = [file for path, file in self.files.items() if path.name == "__init__.py"]
        return self._holds([(file, definition.name.value) for file in packages], definition)

    def _holds(self, names: Iterable[tuple[SourceFile, str]], definition: cst.FunctionDef | cst.ClassDef) -> bool:
        return any(value.key == id(definition) for file, name in names for value in self.held((id(file.module), name)))

    def reaches(self, values: Values, wanted: Values) -> bool:
        """Return whether values are among the wanted ones, or keep one of these as an attribute or item."""
        seen, ahead = set[Value](), list(values)
        while ahead:
            value = ahead.pop()
            if value in wanted:
                return True
            if value in seen:
                continue
            seen.add(value)
            owner = attribute_owner(value)
            owner = self.classes.root(owner) if value.kind is Kind.INSTANCE and owner is not None else owner
            attributes = self._variables.names(owner) if owner is not None else []
            ahead += [one for name in attributes if owner is not None for one in self.held((owner, name))]
            ahead += self.items_of(value)
        return False

    def literal_items(self, mapping: Value) -> Iterator[tuple[str, Values]]:
        """Yield the items of a dict that have literal keys: each key as an index, as in ``["model"]``."""
        for name in self._variables.names(mapping.key):
            if name[:2] == "['" and '"' not in name:
                yield name.replace("'", '"'), self._expressions.items.named(mapping, name)

    def in_order(self, values: Values) -> list[Value]:
        """Return values in the order in which the program makes them, file by file; names of libraries come first."""
        return sorted(values, key=self._place) if len(values) > 1 else list(values)

    def _place(self, value: Value) -> tuple[tuple[str, int], list[tuple[str, int]], str, str]:
        """Return where a value is made, and where the calls are that a copy of it has come through, to sort by."""
        calls = [(str(file.path), file.number(call)) for file, call in self.copies.calls(value)]
        return self._variables.place(value), calls, value.name, value.kind.value

    def scopes(self, file: SourceFile) -> Scopes:
        return self._scopes[id(file)]

    def set_fields(self, call: cst.Call, file: SourceFile) -> list[tuple[str, cst.BaseExpression]]:
        """Return the fields that a call of a data class or the like sets, by name, and what they are set to."""
        given = fields_set_by(call, file, self._expressions)
        return [(variable[1].strip(".[]'\""), value) for variable, value in given]

    def chosen_by(self, call: cst.Call, file: SourceFile) -> Values:
        """Return the classes and functions that a call of a factory chooses."""
        chosen = [self._expressions.chosen_by(callee, call, file) for callee in self.values(call.func, file)]
        return frozenset(value for one in chosen if one is not None for value in one[0])

    def construction(self, call: cst.Call, file: SourceFile) -> cst.Call:
        """Return the call that makes an object: of a factory, that of what it chooses, with the arguments for it."""
        return next(iter(self.constructions(call, file)), call)

    def constructions(self, call: cst.Call, file: SourceFile) -> list[cst.Call]:
        """Return the calls that may make an object where a factory, or an item of a dict, is called."""
        callees = self.in_order(self.values(call.func, file))
        chosen = [self._expressions.chosen_by(callee, call, file) for callee in callees]
        return [one[1] for one in chosen if one is not None]

    def is_call_of(self, call: cst.Call, file: SourceFile, names: Collection[str]) -> bool:
        """Return whether a call may be one of these functions of a library, by their dotted names."""
        known = self._external.get(id(call))
        if known is None:
            external = of_kind(self.values(call.func, file), Kind.EXTERNAL)
            known = self._external[id(call)] = call, [value.name for value in external]
        return any(name in names for name in known[1]) if known[1] else False

    def is_named(self, node: cst.BaseExpression, file: SourceFile, name: str) -> bool:
        """Return whether an expression is what a library has by this dotted name, and nothing else."""
        values = self.values(node, file)
        return bool(values) and all(value.kind is Kind.EXTERNAL and value.name == name for value in values)

    def once(self, find: Callable[..., _T], *given: Hashable) -> _T:
        """Return what a function finds of this program, and what else it is given, which it is asked once."""
        question = find, *given
        if question not in self._answers:
            self._answers[question] = find(self, *given)
        found: _T = self._answers[question]
        return found

    def variable(self, node: cst.CSTNode, file: SourceFile) -> Variable | None:
        """Return the variable that a name or attribute means; None where the owner of an attribute is not one value."""
        if isinstance(node, cst.Name):
            return self.scopes(file).variable(node.value, node)
        if isinstance(node, cst.Attribute):
            owners = {attribute_owner(value) for value in self.values(node.value, file)} - {None}
            if len(owners) == 1:
                owner = owners.pop()
                assert owner is not None
                return self.classes.attribute(owner, node.attr.value)
        return None
