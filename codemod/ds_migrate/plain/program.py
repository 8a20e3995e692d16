"""The programs of a project: files that make, pass on and step the same optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ds_migrate.files.prefilter import may_belong_to_loop, may_hold_loop
from ds_migrate.project.import_resolver import ImportResolver
from ds_migrate.project.module_index import ModuleFacts, module_facts

Read = Callable[[Path], bytes | None]


@dataclass(frozen=True)
class Program:
    """Files that belong together. ``context`` are read along, as they define what these use, and never written."""

    files: tuple[Path, ...]
    context: tuple[Path, ...]
    resolver: ImportResolver

    def resolve(self, importer: Path, module: str, name: str, level: int) -> Path | None:
        """Return the file that an import means."""
        found = self.resolver.resolve_name(str(importer), module, name, level)
        return None if found is None else Path(found)


def find_programs(root: Path, names: Iterable[str], read: Read) -> list[Program]:
    """Return the programs of a project that may hold a training loop."""
    paths = {name: Path(name) for name in names if name.endswith(".py")}
    resolver = ImportResolver(str(root), paths.__contains__)
    relevant: dict[str, ModuleFacts] = {}
    holds_loop: set[str] = set()
    for name, path in paths.items():
        data = read(path)
        if data is None or not may_belong_to_loop(data):
            continue
        try:
            relevant[name] = module_facts(data)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        if may_hold_loop(data):
            holds_loop.add(name)
    imported = {name: _imported(name, facts, resolver) for name, facts in relevant.items()}
    groups = _connected(imported, relevant)
    programs = []
    for group in groups:
        if group & holds_loop:
            context = {other for name in group for other in imported[name]} - group
            programs.append(Program(tuple(map(Path, sorted(group))), tuple(map(Path, sorted(context))), resolver))
    return programs


def _imported(name: str, facts: ModuleFacts, resolver: ImportResolver) -> set[str]:
    found = {resolver.resolve_name(name, i.module, i.name, i.level) for i in facts.imports}
    found |= {resolver.resolve(name, i.module, i.level) for i in facts.imports if i.module}
    found |= {resolver.resolve(name, f"{i.module}.{i.name}".strip("."), i.level) for i in facts.imports if i.name}
    return {path for path in found if path is not None} - {name}


def _connected(imported: Mapping[str, set[str]], relevant: Mapping[str, ModuleFacts]) -> list[set[str]]:
    """Return the relevant files in groups that import each other, in whichever direction."""
    group_of: dict[str, set[str]] = {}
    for name in relevant:
        merged = {name}
        for other in (name, *imported[name]):
            merged |= group_of.get(other, set()) if other in relevant else set()
            if other in relevant:
                merged.add(other)
        for member in merged:
            group_of[member] = merged
    return list({id(group): group for group in group_of.values()}.values())
