"""Names that files of a project use of each other, through the packages that pass these on."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from ds_migrate.plain.reachability import reachable
from ds_migrate.project.import_resolver import ImportResolver
from ds_migrate.syntax.parsing import parse_if_valid

_MAY_CHANGE = re.compile(rb"\.save\w*\(|\bopen\(|\boptim\.|DataLoader\(|SummaryWriter\(|init_process_group")


@dataclass
class _Names:
    """The names of a module: bound by imports (module, name, level), by ``import *``, defined, used."""

    imported: dict[str, list[tuple[str, str, int]]] = field(default_factory=dict)
    stars: list[tuple[str, int]] = field(default_factory=list)
    defined: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)


_Followed = tuple[str, str | frozenset[str]]  # a file, and the name or names of it that were followed


@dataclass
class Needs:
    """The files that a file needs: ``definers`` of the names that it uses, and what passes them on."""

    definers: set[str] = field(default_factory=set)
    passing: set[str] = field(default_factory=set)
    followed: set[_Followed] = field(default_factory=set)


class ImportGraph:
    """The uses of names between the files of a project.

    A package whose ``__init__`` imports all its modules connects every file with every other one; who uses a name of
    which module does not.

    Args:
        read: returns the content of a file, None where it cannot be read.
    """

    def __init__(self, read: Callable[[str], bytes | None], resolver: ImportResolver) -> None:
        self._read = read
        self._resolver = resolver
        self._modules: dict[str, _Names | None] = {}
        self._needs: dict[str, Needs] = {}

    def needs(self, name: str) -> Needs:
        """Return what a file needs of other files itself."""
        if name not in self._needs:
            found = self._needs[name] = Needs()
            module = self._module(name)
            if module is not None:
                used = frozenset(module.used)
                bound = [one for local, all_ in module.imported.items() if local in module.used for one in all_]
                for one in bound:
                    self._enter(name, *one, used, found)
                for source, level in module.stars:
                    self._enter_all(name, source, level, used, found)
                found.followed.clear()
                found.definers.discard(name)
                found.passing -= {name, *found.definers}
        return self._needs[name]

    def may_change(self, name: str) -> bool:
        """Return whether a file that loops use may change with them: it saves, or makes loaders or optimizers."""
        return _MAY_CHANGE.search(self._read(name) or b"") is not None

    def size(self, names: Collection[str]) -> int:
        """Return the bytes of files, and of those that pass on what they need."""
        passing = {other for name in names for other in self.needs(name).passing}
        return sum(len(self._read(name) or b"") for name in passing.union(names))

    def _enter(self, importer: str, module: str, name: str, level: int, used: frozenset[str], found: Needs) -> None:
        """Follow one import of a file that uses these names."""
        if name:
            submodule = self._resolver.resolve(importer, f"{module}.{name}" if module else name, level)
            if submodule is not None:
                self._open(submodule, used, found)
            home = self._resolver.resolve(importer, module, level)
            if home is not None:
                self._follow(home, name, found)
            return
        parts = module.split(".")
        for end in range(len(parts) if level else 1, len(parts) + 1):
            home = self._resolver.resolve(importer, ".".join(parts[:end]), level)
            if home is not None:
                self._open(home, used, found)

    def _open(self, home: str, used: frozenset[str], found: Needs) -> None:
        """Follow every name of a module that a file may use as its attribute."""
        if (home, used) in found.followed:
            return
        found.followed.add((home, used))
        found.passing.add(home)
        module = self._module(home)
        for name in used & (module.imported.keys() | module.defined) if module is not None else ():
            self._follow(home, name, found)
        for source, level in module.stars if module is not None else ():
            self._enter_all(home, source, level, used, found)

    def _enter_all(self, importer: str, source: str, level: int, used: frozenset[str], found: Needs) -> None:
        """Follow an import of all names of a module, where one of them is used."""
        home = self._resolver.resolve(importer, source, level)
        if home is None or self._offers(home, used, set()):
            self._enter(importer, source, "", level, used, found)

    def _offers(self, home: str, used: frozenset[str], seen: set[str]) -> bool:
        """Return whether a module, or one of which it imports all names, has one of these names, as far as is known."""
        module = self._module(home)
        if module is None or used & (module.imported.keys() | module.defined):
            return True
        seen.add(home)
        sources = (self._resolver.resolve(home, source, level) for source, level in module.stars)
        return any(one not in seen and self._offers(one, used, seen) for one in sources if one is not None)

    def _follow(self, home: str, name: str, found: Needs) -> None:
        """Follow a name of a module to the file that defines it."""
        if (home, name) in found.followed:
            return
        found.followed.add((home, name))
        module = self._module(home)
        if module is None or name in module.defined or not (name in module.imported or module.stars):
            found.definers.add(home)
        if module is None:
            return
        found.passing.add(home)
        for one in module.imported.get(name, ()):
            self._enter(home, *one, frozenset({name}), found)
        for source, level in module.stars if name not in module.imported else ():
            self._enter_all(home, source, level, frozenset({name}), found)

    def _module(self, name: str) -> _Names | None:
        if name not in self._modules:
            data = self._read(name)
            self._modules[name] = None if data is None else _names(data)
        return self._modules[name]


def _names(data: bytes) -> _Names | None:
    tree = parse_if_valid(data)
    if tree is None:
        return None
    found = _Names()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (found.used if isinstance(node.ctx, ast.Load) else found.defined).add(node.id)
        elif isinstance(node, ast.Attribute):
            found.used.add(node.attr)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            found.defined.add(node.name)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                local = alias.asname or alias.name.split(".")[0]
                found.imported.setdefault(local, []).append((alias.name, "", 0))
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if alias.name == "*":
                    found.stars.append((node.module or "", node.level))
                else:
                    one = node.module or "", alias.name, node.level
                    found.imported.setdefault(alias.asname or alias.name, []).append(one)
    return found


def divide(
    group: Collection[str], loops: Collection[str], graph: ImportGraph, most: int
) -> Iterator[tuple[set[str], set[str]]]:
    """Divide files that all import each other into programs: loops and those that use them, with what these need.

    Args:
        group: the files. loops: those of them with a training loop. most: bytes of one of several loops.

    Yields:
        The files of a program, and those that are read along, as other programs need them too.
    """
    users: dict[str, set[str]] = {}
    for name in group:
        for other in graph.needs(name).definers:
            users.setdefault(other, set()).add(name)
    cores: list[set[str]] = []
    for loop in sorted(loops):
        core = set(reachable({loop}, lambda name: users.get(name, ())))
        cores = [*(c for c in cores if not c & core), core.union(*(c for c in cores if c & core))]
    programs: list[tuple[set[str], set[str]]] = []
    for core in cores:
        wanted = _needed(core, group, graph)
        for known in [p for p in programs if any(graph.may_change(name) for name in p[1] & wanted)]:
            if graph.size(core | known[0] | wanted | known[1]) <= most:
                programs.remove(known)
                core, wanted = core | known[0], wanted | known[1]
        programs.append((core, wanted - core))
    for core, wanted in programs:
        others = set[str]().union(*(a | b for a, b in programs if a is not core))
        passing = {name for one in core | wanted for name in graph.needs(one).passing}
        own = core | (wanted - others)
        yield own, (wanted | passing) - own


def _needed(core: set[str], group: Collection[str], graph: ImportGraph) -> set[str]:
    """Return the files that define what these use; those outside of the group define what does not train."""
    known = reachable(core, lambda name: graph.needs(name).definers if name in group else ())
    return set(known) - core
