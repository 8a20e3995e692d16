"""What converted files take from the runtime."""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst

from ds_migrate.rules.codes import Code
from ds_migrate.syntax.source import SourceFile

RUNTIME = "trial_runtime.plain"
Converted = Callable[[Code, SourceFile, cst.CSTNode, str], None]


class RuntimeNames:
    """What converted files take from the runtime, each in one import."""

    def __init__(self) -> None:
        self._names: dict[SourceFile, dict[str, str]] = {}

    def name(self, file: SourceFile, name: str) -> str:
        """Return what a file calls a helper of the runtime."""
        known = self._names.setdefault(file, {})
        if name not in known:
            known[name] = file.names.fresh(name, f"{name}_")
        return known[name]

    def write_imports(self) -> None:
        """Write one import in each file that uses a helper."""
        for file, names in self._names.items():
            listed = [name if name == bound else f"{name} as {bound}" for name, bound in sorted(names.items())]
            file.imports.insert(f"from {RUNTIME} import {', '.join(listed)}", RUNTIME, True)
