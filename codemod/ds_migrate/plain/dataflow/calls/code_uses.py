"""The functions and classes that code of a program names, by what its names are rather than by their spelling."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.program_arguments import is_arguments
from ds_migrate.plain.dataflow.calls.code_graph import key_around
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.syntax.nodes import called_name, targets, walk
from ds_migrate.syntax.source import SourceFile

# Calls whose function no name leads to; not model.eval(), nor the attribute that a literal names.
HIDDEN_CALLS = re.compile(
    rb"(?<![\w.])(?:(?:eval|exec)\(|getattr\([^,\n]*,(?!\s*[\"']))|import_module|__import__|runpy"
)
_HIDDEN = frozenset({"eval", "exec", "import_module", "__import__", "run_path", "run_module", "getattr"})
_BINDS = (cst.FunctionDef, cst.ClassDef, cst.ImportAlias, cst.ImportFrom, cst.Param, cst.AsName, cst.AssignTarget)


class Use(NamedTuple):
    """A node that names functions and classes, by identity.

    Attributes:
        is_choice: whether it calls one of them, which the command line chooses: ``args.func(args)``.
    """

    node: cst.CSTNode
    named: frozenset[int]
    is_choice: bool = False


class CodeUses:
    """The functions and classes that each function or module of some files names, by identity."""

    def __init__(self, files: Collection[SourceFile], flow: Flow) -> None:
        self._flow = flow
        self._by_name: dict[str, set[int]] = {}
        self._methods: dict[str, set[int]] = {}
        for file in files:
            for node in file.nodes(cst.FunctionDef, cst.ClassDef):
                is_method = isinstance(next(islice(file.ancestors(node), 1, 2), None), cst.ClassDef)
                (self._methods if is_method else self._by_name).setdefault(node.name.value, set()).add(id(node))
        self._chosen: dict[str, set[int]] = {}
        self._of: dict[int, list[Use]] = {}
        registered = {id(node) for file in files for node in self._registered(file)}
        for function in (node for file in files for node in file.nodes(cst.FunctionDef)):
            for home, call in flow.callers.of(function):
                self._add(call, home, {id(function)} if id(call) not in registered else ())
        for file in files:
            for name in file.nodes(cst.Name):
                self._add(name, file, self._of_name(name, file) if id(name) not in registered else ())
        self._add_hidden(files)
        for file in files if self._chosen else ():
            for node in file.nodes(cst.Attribute):
                if isinstance(file.parent(node), cst.Call):
                    self._add(node, file, self._chosen.get(node.attr.value, ()), is_choice=True)

    def _add(self, node: cst.CSTNode, file: SourceFile, named: Collection[int], is_choice: bool = False) -> None:
        if named:
            self._of.setdefault(key_around(node, file), []).append(Use(node, frozenset(named), is_choice))

    def _add_hidden(self, files: Collection[SourceFile]) -> None:
        """Have calls that no name leads to name what texts beside them do, and what no code does."""
        hidden = [(call, file) for file in files for call in self._hidden_calls(file)]
        known = self._chosen_or_named()
        others = [one for names in (self._by_name, self._methods) for ones in names.values() for one in ones - known]
        for call, file in hidden:
            places = {key_around(call, file), id(file.module)}
            texts = {
                text.raw_value for text in file.nodes(cst.SimpleString)
                if key_around(text, file) in places and not _is_exported(text, file)
            }  # fmt: skip
            spelled = [names[text] for names in (self._by_name, self._methods) for text in texts & names.keys()]
            self._add(call, file, set(others).union(*spelled))

    def _chosen_or_named(self) -> set[int]:
        named = {one for uses in self._of.values() for use in uses for one in use.named}
        return named.union(*self._chosen.values())

    def of(self, key: int) -> Sequence[Use]:
        """Return what code names, and where."""
        return self._of.get(key, ())

    def _registered(self, file: SourceFile) -> Iterator[cst.CSTNode]:
        """Yield the nodes that have a parser of arguments choose a function: ``parser.set_defaults(func=train)``."""
        for call in file.nodes(cst.Call) if b"set_defaults" in file.data else ():
            for arg in call.args if called_name(call) == "set_defaults" else ():
                if arg.keyword is not None:
                    yield from (inside := list(walk(arg.value)))
                    names = (self._of_name(node, file) for node in inside if isinstance(node, cst.Name))
                    self._chosen.setdefault(arg.keyword.value, set()).update(*names)

    def _hidden_calls(self, file: SourceFile) -> Iterator[cst.Call]:
        """Yield the calls of a file that no name leads to: not ``getattr(args, name)``, nor of a library."""
        for call in file.nodes(cst.Call) if b"getattr" in file.data or HIDDEN_CALLS.search(file.data) else ():
            if called_name(call) == "getattr" and len(call.args) > 1:
                owner, name = call.args[0].value, call.args[1].value
                values = self._flow.values(owner, file)
                if is_arguments(owner, file, self._flow) or (values and values == of_kind(values, Kind.EXTERNAL)):
                    continue
                if isinstance(name, cst.SimpleString):
                    named = (names.get(name.raw_value, set()) for names in (self._by_name, self._methods))
                    self._add(call, file, set[int]().union(*named))
                    continue
            if called_name(call) in _HIDDEN:
                yield call

    def _of_name(self, name: cst.Name, file: SourceFile) -> Collection[int]:
        """Return the functions and classes that a name may be where it is read."""
        around = file.parent(name)
        if isinstance(around, _BINDS) and not (isinstance(around, cst.Param) and around.default is name):
            return ()
        if isinstance(around, cst.Arg) and around.keyword is name:
            return ()
        known = self._by_name.get(name.value, set()) | self._methods.get(name.value, set())
        if isinstance(around, cst.Attribute) and around.attr is name:
            if not known:
                return ()
            values = self._flow.values(around, file)
            if values and values == of_kind(values, Kind.EXTERNAL):
                return ()
            found = {value.key for value in of_kind(values, Kind.FUNCTION, Kind.CLASS)}
            return found if found and len(found) == len(values) else known
        values = self._flow.values(name, file)
        found = {value.key for value in of_kind(values, Kind.FUNCTION, Kind.CLASS)}
        is_variable = name.value in self._flow.scopes(file).bindings and not _is_imported(name.value, file)
        return found or (() if is_variable else self._by_name.get(name.value, ()))


def _is_imported(name: str, file: SourceFile) -> bool:
    return any(
        name in (alias.evaluated_alias, alias.evaluated_name)
        for node in file.names.import_nodes if not isinstance(node.names, cst.ImportStar)
        for alias in node.names
    )  # fmt: skip


def _is_exported(node: cst.CSTNode, file: SourceFile) -> bool:
    """Return whether a text is one of ``__all__``."""
    if not isinstance(node, cst.SimpleString):
        return False
    lines = (outer for outer in file.ancestors(node) if isinstance(outer, (cst.Assign, cst.AnnAssign, cst.AugAssign)))
    return any(isinstance(t, cst.Name) and t.value == "__all__" for line in lines for t in targets(line))
