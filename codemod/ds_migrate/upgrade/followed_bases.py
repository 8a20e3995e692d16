"""``--follow PACKAGE``: a trial's base class in another package is copied beside the trial, which takes it from there.

The package is read, never imported: it is looked for beside the project and where Python looks for packages.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ds_migrate.files.discovery import Source
from ds_migrate.files.regular_file import read_file
from ds_migrate.findings import FileResult, Finding, Severity
from ds_migrate.project.module_index import ClassFacts, ModuleFacts, module_facts
from ds_migrate.rules.codes import Code
from ds_migrate.upgrade.imports import remove_names
from ds_migrate.upgrade.module_edits import ModuleEdits
from ds_migrate.upgrade.result import UpgradedModule

_RELATIVE = re.compile(r"from\s*\.[.\s]*[\w.]*\s+import\b")


@dataclass
class Followed:
    """The copies as files of the run, the modules that take classes from them, and what there is to report."""

    copies: list[Source] = field(default_factory=list)
    modules: dict[Path, UpgradedModule] = field(default_factory=dict)
    results: list[FileResult] = field(default_factory=list)


def follow_bases(sources: Sequence[Source], packages: Sequence[str]) -> Followed:
    """Copy each base class that a class of the sources has in one of the packages, with its module."""
    result = Followed()
    queue = [source for source in sources if source.data is not None and source.name.endswith(".py")]
    while queue:
        source = queue.pop(0)
        copies = _follow(source, packages, result)
        result.copies += copies
        queue += copies
    return result


def _follow(source: Source, packages: Sequence[str], result: Followed) -> list[Source]:
    data = source.data or b""
    if not any(package.encode() in data for package in packages):
        return []
    try:
        facts = module_facts(data)
    except (SyntaxError, ValueError, RecursionError):
        return []
    edits, copies = ModuleEdits(data), []
    findings: list[Finding] = []
    known = {copy.real for copy in result.copies}
    for cls in facts.classes:
        for base in cls.bases:
            if not any(base.startswith(f"{package}.") for package in packages):
                continue
            found = _definition(source, base)
            if found is None:
                continue
            module, path, name = found
            target = source.real.with_name(f"{module.replace('.', '_')}.py")
            _take_from(edits, cls, base, f"{_prefix(source, facts)}{target.stem}", name)
            message = f"{name} is taken from {target.name}, a copy of {module} that is converted with the trial"
            findings.append(Finding(Code.FOREIGN_BASE, Severity.REVIEW, cls.line, message, trial=cls.name))
            if target not in known:
                known.add(target)
                copies.append(_copy(source, target, module, path))
    if edits.is_changed:
        upgraded = edits.result()
        findings = [replace(f, line=bisect_left(upgraded.origins, f.line) + 1) for f in findings]
        result.results.append(FileResult(source.real, findings=findings))
        if source in result.copies:
            source.data = upgraded.data
        else:
            result.modules[source.real] = upgraded
    return copies


def _copy(source: Source, target: Path, module: str, path: str) -> Source:
    """Return the module as a file beside the trial; its relative imports are absolute ones."""
    edits = ModuleEdits(read_file(path))
    package = module.split(".") if path.endswith("__init__.py") else module.split(".")[:-1]
    for node in ast.walk(edits.tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            outer = package[: len(package) - node.level + 1]
            start = edits.start(node)
            head = _RELATIVE.match(edits.text, start)
            if head is not None:
                absolute = ".".join([*outer, *([node.module] if node.module else [])])
                edits.replace(start, head.end(), f"from {absolute} import")
    name = str(Path(source.name).with_name(target.name))
    return Source(name, str(target), source.root_name, edits.result().data)


def _take_from(edits: ModuleEdits, cls: ClassFacts, base: str, module: str, name: str) -> None:
    """Let a class have its base from another module."""
    node = next(n for n in ast.walk(edits.tree) if isinstance(n, ast.ClassDef) and n.lineno == cls.line)
    for expression in node.bases:
        used = expression.value if isinstance(expression, ast.Subscript) else expression
        spelled = ast.unparse(used)
        imported = _import_of(edits, spelled, base)
        if imported is not None:
            alias = f" as {spelled}" if spelled != name else ""
            remove_names(edits, imported, {base.rpartition(".")[2]})
            edits.insert_after(imported, [f"from {module} import {name}{alias}"])
            return
        if isinstance(used, ast.Attribute) and spelled.rpartition(".")[2] == base.rpartition(".")[2]:
            edits.replace_node(used, name)
            imports = [s for s in edits.tree.body if isinstance(s, (ast.Import, ast.ImportFrom))]
            edits.insert_after(imports[-1], [f"from {module} import {name}"])
            return


def _import_of(edits: ModuleEdits, bound: str, base: str) -> ast.ImportFrom | None:
    """Return the import at the top of the module that binds the base class by its name."""
    for node in edits.tree.body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == bound and f"{node.module}.{alias.name}" == base:
                    return node
    return None


def _prefix(source: Source, facts: ModuleFacts) -> str:
    """Return the dot of a relative import where the file's package is imported so."""
    in_package = source.real.with_name("__init__.py").is_file()
    return "." if in_package and any(imported.level for imported in facts.imports) else ""


def _definition(source: Source, base: str, depth: int = 8) -> tuple[str, str, str] | None:
    """Return module, file and name of the class that a dotted name means, through packages that pass it on."""
    module, _, name = base.rpartition(".")
    path = _file_of(source, module)
    if path is None or not depth:
        return None
    facts = module_facts(read_file(path))
    if any(cls.name == name for cls in facts.classes):
        return module, path, name
    meaning = facts.aliases.get(name)
    if meaning is None:
        return None
    level = len(meaning) - len(meaning.lstrip("."))
    if level:
        parts = module.split(".")
        parts = parts[: len(parts) - level + (1 if path.endswith("__init__.py") else 0)]
        meaning = ".".join([*parts, meaning[level:]])
    return None if meaning == base else _definition(source, meaning, depth - 1)


def _file_of(source: Source, module: str) -> str | None:
    for folder in _search_path(source):
        stem = Path(folder, *module.split("."))
        for path in (stem.with_name(f"{stem.name}.py"), stem / "__init__.py"):
            if path.is_file():
                return str(path)
    return None


def _search_path(source: Source) -> Iterator[str]:
    """Yield the folders that may hold a package: the project, beside it, and where Python looks for packages."""
    for folder in (source.real.parent, source.root, source.root.parent):
        yield from (str(folder), str(folder / "src"))
    environment = os.environ.get("VIRTUAL_ENV")
    if environment:
        yield from map(str, sorted(Path(environment).glob("lib/python*/site-packages")))
    yield from (folder for folder in sys.path if folder)
