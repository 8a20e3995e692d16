"""The programs of a project: files that make, pass on and step the same optimizers."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from ds_migrate.files.limits import DEEPEST_MODULE, LARGEST_MODULE
from ds_migrate.files.prefilter import may_belong_to_loop, may_hold_loop, may_pass_backward, may_step, names_torch
from ds_migrate.plain.programs.commands import Command, find_commands
from ds_migrate.plain.programs.dynamic_imports import Folders, imports_by_name
from ds_migrate.plain.programs.import_graph import ImportGraph, divide
from ds_migrate.project.import_resolver import ImportResolver
from ds_migrate.project.module_index import ModuleFacts, module_facts
from ds_migrate.project.recognition import depth_of
from ds_migrate.project.search_path import added_folders
from ds_migrate.syntax.parsing import parse_if_valid

Read = Callable[[Path], bytes | None]

MOST_FILES = 100  # that import each other and are one program: more are divided
LARGEST_PROGRAM = (
    3_000_000  # bytes, with the files that define what it uses: following values through more takes minutes
)


@dataclass(frozen=True)
class Program:
    """Files that belong together. ``context`` are read along, as they define what these use.

    ``is_divided``: the files were taken from more that import each other. Other programs may use the context too, so
    that it is never written.
    ``commands``: the functions that the project installs as commands.
    """

    files: tuple[Path, ...]
    context: tuple[Path, ...]
    resolver: ImportResolver
    is_divided: bool = False
    commands: tuple[Command, ...] = ()

    @property
    def paths(self) -> tuple[Path, ...]:
        """Return all files that are read."""
        return (*self.files, *self.context)

    @property
    def changeable(self) -> tuple[Path, ...]:
        """Return the files that may be written where they are named."""
        return self.files if self.is_divided else self.paths

    def resolve(self, importer: Path, module: str, name: str, level: int) -> Path | None:
        """Return the file that an import means."""
        found = self.resolver.resolve_name(str(importer), module, name, level)
        return None if found is None else Path(found)


def find_programs(
    root: Path, names: Iterable[str], given: Collection[str], read: Read
) -> tuple[list[Program], list[Path]]:
    """Return the programs of a project that may hold a training loop, and the files that may and cannot be read.

    Only those of the ``given`` files, and of loops in their folders, are sure to be found.
    """
    paths = {name: Path(name) for name in names if name.endswith(".py")}
    contents = {name: data for name, path in paths.items() if (data := read(path)) is not None}
    resolver = ImportResolver(str(root), paths.__contains__, added_folders(contents, str(root)))
    all_folders = Folders(contents)

    @cache
    def imports_of(name: str) -> set[str] | None:
        facts = _facts(contents[name])
        if facts is None:
            return None
        return {*_imported(name, facts, resolver), *all_folders.imported_by(name, contents[name], resolver)}

    if not contents.keys() <= set(given):
        folders = {paths[name].parent for name in given if name in paths}
        beside = {name for name, data in contents.items() if paths[name].parent in folders and may_hold_loop(data)}
        contents = _connected_to(contents.keys() & {*given, *beside}, contents, imports_of)
    imported: dict[str, set[str]] = {}
    new = {name for name, data in contents.items() if may_belong_to_loop(data)}
    trains = {name for name in new if may_pass_backward(contents[name])}
    steps = {name for name in new if may_step(contents[name])}
    waiting = contents.keys() - new
    while new:
        for name in sorted(new):
            found = imports_of(name)
            if found is not None:
                imported[name] = found
        waiting -= new
        new = _importers(waiting, contents, imported, imports_of) if trains and steps else set()
    groups = _connected(imported)
    programs = []
    for group in groups:
        if not (group & trains and group & steps and any(names_torch(contents[name]) for name in group)):
            continue
        if len(group) <= MOST_FILES:
            along = {other for name in group for other in imported[name]} - group
            programs.append(_program(group, _with_imported(group, along, imports_of), resolver))
            continue
        graph = ImportGraph(lambda name: read(paths[name]), resolver)
        for own, along in divide(group, group & steps, graph, LARGEST_PROGRAM):
            if trains & (own | along):
                programs.append(_program(own, along, resolver, is_divided=True))
    programs.sort(key=lambda program: program.files)
    commands = find_commands(root, paths.values(), read, resolver) if programs else ()
    programs = [replace(program, commands=commands) for program in programs]
    return programs, [paths[name] for name in sorted((trains & steps) - imported.keys()) if names_torch(contents[name])]


def _with_imported(
    group: Collection[str], along: set[str], imports_of: Callable[[str], set[str] | None]
) -> Collection[str]:
    """Return the files along with a program, and all that these import, as long as they are few."""
    found, new = set(along), set(along)
    while new:
        new = {other for name in new for other in imports_of(name) or ()} - found - set(group)
        found |= new
        if len(group) + len(found) > MOST_FILES:
            return along
    return found


def _program(
    files: Collection[str], context: Collection[str], resolver: ImportResolver, *, is_divided: bool = False
) -> Program:
    return Program(tuple(map(Path, sorted(files))), tuple(map(Path, sorted(context))), resolver, is_divided)


def _facts(data: bytes) -> ModuleFacts | None:
    """Read a module; None for an invalid one, and one with a loop that takes too long for its size or its depth."""
    has_loop = may_hold_loop(data)
    tree = None if has_loop and len(data) > LARGEST_MODULE else parse_if_valid(data)
    if tree is None or (has_loop and depth_of(tree) > DEEPEST_MODULE):
        return None
    try:
        return module_facts(data, tree=tree)
    except (ValueError, RecursionError, MemoryError):
        return None


def _connected_to(
    seeds: Collection[str], contents: Mapping[str, bytes], imports_of: Callable[[str], set[str] | None]
) -> dict[str, bytes]:
    """Return the files that import these, or are imported by them, however indirectly."""
    found: dict[str, bytes] = {}
    left, new = dict(contents), set(seeds)
    while new:
        found |= {name: left.pop(name) for name in new}
        imported = {other for name in new for other in imports_of(name) or ()}
        new = (imported & left.keys()) | _importers(left, contents, new, imports_of)
    return found


def _importers(
    waiting: Collection[str],
    contents: Mapping[str, bytes],
    known: Collection[str],
    imports_of: Callable[[str], set[str] | None],
) -> set[str]:
    """Return the files that import known ones: a script may do no more than pass a model to a trainer."""
    stems = {Path(name).parent.name if name.endswith("__init__.py") else Path(name).stem for name in known}
    named = re.compile(
        rb"(?:import|from)\b.*\b(?:%s)\b" % b"|".join(re.escape(stem.encode()) for stem in sorted(stems))
    )
    named_in = (name for name in waiting if named.search(contents[name]) or imports_by_name(contents[name]))
    return {name for name in named_in if any(other in known for other in imports_of(name) or ())}


def _imported(name: str, facts: ModuleFacts, resolver: ImportResolver) -> set[str]:
    found = {resolver.resolve_name(name, i.module, i.name, i.level) for i in facts.imports}
    found |= {resolver.resolve(name, i.module, i.level) for i in facts.imports if i.module}
    found |= {resolver.resolve(name, f"{i.module}.{i.name}".strip("."), i.level) for i in facts.imports if i.name}
    return {path for path in found if path is not None} - {name}


def _connected(imported: Mapping[str, set[str]]) -> list[set[str]]:
    """Return files in groups that import each other, in whichever direction."""
    group_of: dict[str, set[str]] = {}
    for name in imported:
        merged = {name}
        for other in (name, *imported[name]):
            if other in imported:
                merged |= group_of.get(other, set()) | {other}
        for member in merged:
            group_of[member] = merged
    return list({id(group): group for group in group_of.values()}.values())
