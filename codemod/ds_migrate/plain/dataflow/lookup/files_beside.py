"""The files of a program that run together with a loop: other scripts of its tree may use the same library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.reachability import reachable
from ds_migrate.syntax.nodes import called_name, dotted
from ds_migrate.syntax.source import SourceFile


def files_beside(files: Iterable[SourceFile], flow: Flow) -> list[SourceFile]:
    """Return the files that may run in one process with any of these, in the order of the program.

    Those are all files that import them, however indirectly, and everything that these import.
    """
    reached = files_used(files_using(files, flow), flow)
    return [file for file in flow.files.values() if id(file) in reached]


def files_using(files: Iterable[SourceFile], flow: Flow) -> list[SourceFile]:
    """Return these files and all that import them, however indirectly, in the order of the program."""
    importers: dict[int, set[int]] = {}
    for importer, found in flow.once(_imports).items():
        for key in found:
            importers.setdefault(key, set()).add(importer)
    above = set(reachable(map(id, files), lambda key: importers.get(key, ())))
    return [file for file in flow.files.values() if id(file) in above]


def files_used(files: Iterable[SourceFile], flow: Flow) -> set[int]:
    """Return these files and all that they import, however indirectly, by identity."""
    imports = flow.once(_imports)
    return set(reachable(map(id, files), lambda key: imports.get(key, ())))


def _imports(flow: Flow) -> Mapping[int, set[int]]:
    """Return the files that each file of a program imports, by identity."""
    return {id(file): _imported(file, flow) for file in flow.files.values()}


def _imported(file: SourceFile, flow: Flow) -> set[int]:
    """Return the files of the program that an import in this file runs, also one by ``import_module()``."""
    asked: set[tuple[str, int]] = set()
    for node in file.names.import_nodes:
        if isinstance(node, cst.Import):
            asked |= {(dotted(alias.name) or "", 0) for alias in node.names}
            continue
        module, level = dotted(node.module) or "", len(node.relative)
        asked.add((module, level))
        if not isinstance(node.names, cst.ImportStar):
            names = [dotted(alias.name) or "" for alias in node.names]
            asked |= {(f"{module}.{name}" if module else name, level) for name in names}
    found = {flow.module_file(file.path, module, level) for module, level in asked}
    for call in file.nodes(cst.Call) if b"import_module" in file.data else ():
        if called_name(call) == "import_module":
            found |= {flow.file(value) for value in of_kind(flow.values(call, file), Kind.FILE)}
    return {id(other) for other in found if other is not None}
