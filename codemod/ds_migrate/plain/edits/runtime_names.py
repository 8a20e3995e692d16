"""Names that converted files import from the runtime, or from DeepSpeed alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import dotted
from ds_migrate.syntax.source import SourceFile

RUNTIME = "trial_runtime.plain"
Converted = Callable[[Code, SourceFile, cst.CSTNode, str], None]
_NEEDED = ("contextlib", "logging", "os")  # by what is written


class RuntimeNames:
    """The helpers of the runtime that converted files use, in one import a file.

    Args:
        is_there: whether they may use the runtime; else DeepSpeed starts and numbers the ranks.
    """

    def __init__(self, is_there: bool = True) -> None:
        self._is_there = is_there
        self._names: dict[SourceFile, dict[str, str]] = {}

    def name(self, file: SourceFile, name: str) -> str:
        """Return what a file calls a helper of the runtime."""
        known = self._names.setdefault(file, {})
        if name not in known:
            imported = [bound for bound, what in file.imports.bindings.items() if what == f"{RUNTIME}.{name}"]
            if imported:
                return imported[0]
            known[name] = file.names.fresh(name, f"{name}_")
        return known[name]

    def start(self, file: SourceFile, arguments: str = "", counts: Sequence[str] = (), timeout: str = "") -> str:
        """Return the expression that starts the ranks. Only the runtime compares ``counts`` with the launcher's."""
        if self._is_there or counts:
            return f"{self.name(file, 'init_distributed')}({arguments})"
        return f"{file.imports.module('deepspeed')}.init_distributed({timeout})"

    def start_one(self, file: SourceFile) -> str:
        """Return the expression that starts one rank, where a program has not started the several that it may."""
        return f"{self.name(file, 'init_distributed')}(world_size=1)"

    def main_rank(self, file: SourceFile) -> str:
        """Return the condition that holds on rank 0."""
        if self._is_there:
            return f"{self.name(file, 'is_main_rank')}()"
        return f"{file.imports.module('deepspeed')}.comm.get_rank() == 0"

    def wait(self, file: SourceFile) -> str:
        """Return the expression that lets all ranks wait for each other."""
        if self._is_there:
            return f"{self.name(file, 'wait_for_all_ranks')}()"
        return f"{file.imports.module('deepspeed')}.comm.barrier()"

    def device_choice(self, file: SourceFile) -> list[str]:
        """Return the statement that makes the rank's device the current one, where starting the ranks does not."""
        if self._is_there:
            return []
        accelerator = file.imports.name("deepspeed.accelerator", "get_accelerator")
        return [f'{accelerator}().set_device(int({file.imports.module("os")}.environ["LOCAL_RANK"]))']

    @property
    def missing(self) -> list[str]:
        """The helpers that are used, although the runtime may not be."""
        return [] if self._is_there else sorted({name for names in self._names.values() for name in names})

    def write_import(self, file: SourceFile) -> None:
        """Write the import of the helpers that a file uses."""
        names = sorted(self._names.get(file, {}).items())
        if not names:
            return
        known = next((line for line in file.nodes(cst.ImportFrom) if _imports_runtime(line, file)), None)
        if known is not None:
            file.change(known, lambda updated: _extended(updated, names))
            return
        listed = [name if name == bound else f"{name} as {bound}" for name, bound in names]
        file.imports.insert(f"from {RUNTIME} import {', '.join(listed)}", RUNTIME, True)

    def checkpoint(self) -> Callable[[], None]:
        """Return a function that takes back every name given from now on."""
        saved = {file: dict(names) for file, names in self._names.items()}

        def undo() -> None:
            self._names = {file: dict(names) for file, names in saved.items()}

        return undo


def _imports_runtime(node: cst.ImportFrom, file: SourceFile) -> bool:
    """Return whether an import line has names of the runtime, as an earlier conversion wrote it."""
    is_line = file.parent(file.parent(node) or node) is file.module
    is_list = not isinstance(node.names, cst.ImportStar) and not node.relative
    return is_line and is_list and dotted(node.module) == RUNTIME


def _extended(node: cst.CSTNode, names: Sequence[tuple[str, str]]) -> cst.CSTNode:
    """Return an import with more names, each with what it is called there, in alphabetical order."""
    assert isinstance(node, cst.ImportFrom) and not isinstance(node.names, cst.ImportStar)
    known = [(str(alias.evaluated_name), str(alias.evaluated_alias or alias.evaluated_name)) for alias in node.names]
    aliases = [
        cst.ImportAlias(cst.Name(name), cst.AsName(cst.Name(bound)) if name != bound else None)
        for name, bound in sorted({*known, *names})
    ]
    return node.with_changes(names=aliases, lpar=None, rpar=None)


def use_star_imports(flow: Flow) -> None:
    """Let files use the modules that star imports give them, in the place of imports beside these."""
    for file in flow.files.values():
        if not any(isinstance(line.names, cst.ImportStar) for line in file.nodes(cst.ImportFrom)):
            continue
        for name in _NEEDED:
            used = next((node for node in file.nodes(cst.Name) if node.value == name), None)
            values = flow.values(used, file) if used is not None else frozenset()
            if name not in file.imports.bindings and {(v.kind, v.name) for v in values} == {(Kind.EXTERNAL, name)}:
                file.imports.bindings[name] = name
