"""The names that definitions and imports bind in the files of a program."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import libcst as cst

from ds_migrate.plain.dataflow.classes import PROPERTIES, Classes, is_decorated
from ds_migrate.plain.dataflow.lookup.imported_modules import is_fallback
from ds_migrate.plain.dataflow.scopes import Scopes
from ds_migrate.plain.dataflow.values import Kind, Value, Variable
from ds_migrate.plain.dataflow.variables import Variables
from ds_migrate.syntax.nodes import dotted, positional
from ds_migrate.syntax.source import SourceFile

SUBMODULES = -2  # owner of the modules of packages that are no files of the program, by their whole names
Resolve = Callable[[Path, str, str, int], Path | None]  # file, module, name, leading dots -> file


class Definitions:
    """Functions, classes and imported names, as values of variables."""

    def __init__(
        self,
        files: Mapping[Path, SourceFile],
        resolve: Resolve,
        scopes: Mapping[int, Scopes],
        variables: Variables,
        classes: Classes,
    ) -> None:
        self._files = files
        self._resolve = resolve
        self._scopes = scopes
        self._variables = variables
        self._classes = classes
        self._links: list[tuple[Variable, Variable]] = []  # names imported from files of the program
        self._homes: dict[Variable, Variable] = {}
        self._stars: list[tuple[int, int]] = []  # scopes with all names of another

    def bind(self) -> None:
        """Bind the names of all files."""
        self._links.clear()
        self._stars.clear()
        for path, file in self._files.items():
            self._variables.add_node(id(file.module), file, file.module)
            for node in file.nodes(cst.FunctionDef, cst.ClassDef):
                self._bind_definition(node, file)
            self._bind_imports(path, file)
        self._homes = dict(self._links)

    def origin(self, variable: Variable) -> Variable:
        """Return the variable that an imported name is in the file that binds it."""
        seen = {variable}
        while (home := self._homes.get(variable)) is not None and home not in seen:
            seen.add(home)
            variable = home
        return variable

    def pass_on(self) -> None:
        """Give names that are imported from files of the program what they hold there by now."""
        for variable, other in self._links:
            self._variables.add(variable, self._variables.held(other))
        for scope, other_scope in self._stars:
            for name in self._variables.names(other_scope):
                self._variables.add((scope, name), self._variables.held((other_scope, name)))

    def module_file(self, importer: Path, module: str, level: int) -> SourceFile | None:
        """Return the file of the program that a module is."""
        found = self._resolve(importer, module, "", level)
        return None if found is None else self._files.get(found)

    def _bind_definition(self, node: cst.FunctionDef | cst.ClassDef, file: SourceFile) -> None:
        self._variables.add_node(id(node), file, node)
        if isinstance(node, cst.ClassDef):
            self._classes.add_class(node, file)
        kind = Kind.CLASS if isinstance(node, cst.ClassDef) else Kind.FUNCTION
        owner = file.around(node, cst.ClassDef, cst.FunctionDef)
        if isinstance(owner, cst.ClassDef) and isinstance(node, cst.FunctionDef):
            method = Value(Kind.METHOD, id(node), node.name.value, id(owner))
            self._classes.add_method(id(owner), node.name.value, method)
            if any(is_decorated(node, name) for name in PROPERTIES):
                self._classes.add_property(node.name.value, node, file)
            self._bind_receiver(node, owner)
            return
        if is_fallback(node, file):
            return
        scope = self._scopes[id(file)].function_of(node) or file.module
        self._variables.add((id(scope), node.name.value), frozenset({Value(kind, id(node))}))

    def _bind_receiver(self, function: cst.FunctionDef, owner: cst.ClassDef) -> None:
        first = positional(function)[:1]
        if first and not is_decorated(function, "staticmethod") and not is_decorated(function, "classmethod"):
            instance = Value(Kind.INSTANCE, id(owner), owner.name.value)
            self._variables.add((id(function), first[0].name.value), frozenset({instance}))

    def _bind_imports(self, path: Path, file: SourceFile) -> None:
        for node in file.names.import_nodes:
            scope = self._scopes[id(file)].function_of(node) or file.module
            if isinstance(node, cst.Import):
                for alias in node.names:
                    self._bind_module(path, alias, id(scope))
            else:
                self._bind_from(path, node, id(scope), file)
        for name in ("getattr", "print", "vars"):
            self._variables.add((id(file.module), name), frozenset({Value(Kind.EXTERNAL, 0, name)}))

    def _bind_module(self, path: Path, alias: cst.ImportAlias, scope: int) -> None:
        name = dotted(alias.name) or ""
        bound = alias.evaluated_alias or name.split(".")[0]
        found = self.module_file(path, name, 0)
        packages = [self.module_file(path, package, 0) for package in _packages(name)]
        if found is not None and (alias.evaluated_alias or None not in packages):
            value = Value(Kind.FILE, id(found.module))
            inner = found
            for package, part in zip(packages[::-1], name.split(".")[::-1], strict=False):
                if package is not None and not alias.evaluated_alias:
                    self._variables.add((id(package.module), part), frozenset({Value(Kind.FILE, id(inner.module))}))
                    inner, value = package, Value(Kind.FILE, id(package.module))
        else:
            value = Value(Kind.EXTERNAL, 0, name if alias.evaluated_alias else bound)
            if found is not None:
                self._variables.add((SUBMODULES, name), frozenset({Value(Kind.FILE, id(found.module))}))
        self._variables.add((scope, bound), frozenset({value}))

    def _bind_star_of_torch(self, module: str, file: SourceFile, scope: int) -> None:
        """Bind the names of a file that nothing else binds, where all that it imports by a star is one torch module."""
        stars = [node for node in file.nodes(cst.ImportFrom) if isinstance(node.names, cst.ImportStar)]
        others = {dotted(node.module) or "." for node in stars} - {module}
        if any(other.partition(".")[0] not in sys.stdlib_module_names for other in others):
            return
        free = file.names.used - self._scopes[id(file)].bindings.keys() - vars(builtins).keys()
        for name in sorted(free):
            self._variables.add((scope, name), frozenset({Value(Kind.EXTERNAL, 0, f"{module}.{name}")}))

    def _bind_from(self, path: Path, node: cst.ImportFrom, scope: int, file: SourceFile) -> None:
        module, level = dotted(node.module) or "", len(node.relative)
        home = self.module_file(path, module, level)
        first = module.partition(".")[0]
        part = self.module_file(path, first, 1) if first and level == 1 and path.name == "__init__.py" else None
        if part is not None:  # a package has its parts as attributes
            self._variables.add((scope, first), frozenset({Value(Kind.FILE, id(part.module))}))
        if isinstance(node.names, cst.ImportStar):
            if home is not None:
                self._stars.append((scope, id(home.module)))
            elif first == "torch":
                self._bind_star_of_torch(module, file, scope)
            return
        for alias in node.names:
            name = dotted(alias.name) or ""
            bound = alias.evaluated_alias or name
            submodule = self.module_file(path, f"{module}.{name}" if module else name, level)
            if submodule is not None:
                self._variables.add((scope, bound), frozenset({Value(Kind.FILE, id(submodule.module))}))
            if home is not None:  # a function may be named like its module
                self._links.append(((scope, bound), (id(home.module), name)))
            elif submodule is None:
                prefix = "." * level + module
                qualified = f"{prefix}.{name}" if module else f"{prefix}{name}"
                self._variables.add((scope, bound), frozenset({Value(Kind.EXTERNAL, 0, qualified)}))


def _packages(name: str) -> list[str]:
    """Return the packages around a module, the outermost first: ``a`` and ``a.b`` of ``a.b.c``."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]
