"""The files of a project that its imports mean."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

_OF_PYTHON = sys.stdlib_module_names - {"test"}  # which scripts have themselves


class ImportResolver:
    """Resolves imports among the files of the project in the folder ``root``. Paths are text, absolute, links resolved:
    thousands are asked for, and Path objects cost ten times as much.

    ``has_file``: whether a path is a Python file of the project. ``added``: folders that files put on the search path,
    by the folder of those files.
    """

    def __init__(
        self, root: str, has_file: Callable[[str], bool], added: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        self._root = root
        self._has_file = has_file
        self._added = added or {}
        self._known: dict[tuple[str, str, int], str | None] = {}

    def resolve(self, importer: str, module: str, level: int = 0) -> str | None:
        """Return the file that ``import module`` means in ``importer``; None for a library.

        ``level`` counts the leading dots. Other imports are looked for beside the file and in the folders above it, up
        to the project's, in each also in ``src``; those that begin with the name of the project's folder also from it.
        Folders that are packages come last: Python searches the folder of the script, which seldom is one. A module of
        Python's library is in none: ``import io`` of a package that has a folder ``io`` means Python's.
        """
        if not level and module.partition(".")[0] == "torch":
            return None  # never a folder of the project with that name
        folder = parent(importer)
        key = (folder, module, level)
        if key not in self._known:
            self._known[key] = self._resolve(folder, module.replace(".", "/"), level)
        return self._known[key]

    def resolve_name(self, importer: str, module: str, name: str, level: int = 0) -> str | None:
        """Return the file of ``from module import name``: the submodule when the name is one, else the module."""
        if name:
            found = self.resolve(importer, f"{module}.{name}" if module else name, level)
            if found is not None and not found.endswith("/__init__.py"):
                return found
        return self.resolve(importer, module, level)

    def _resolve(self, folder: str, module: str, level: int) -> str | None:
        if level:
            for _ in range(level - 1):
                folder = parent(folder)
            return self._file_of(folder, module)
        added = self._added.get(folder, ())
        folders = sorted(self._searched(folder) if module else (), key=self._is_package)
        if module.partition("/")[0] in _OF_PYTHON:
            folders = [searched for searched in folders if not self._is_package(searched)]
        places = [place for searched in folders for place in (searched, f"{searched}/src")]
        found = next(filter(None, (self._file_of(place, module) for place in (*places, *added))), None)
        if found is not None:
            return found
        is_own = module.partition("/")[0] == self._root.rpartition("/")[2]  # the project's folder is a package itself
        return self._file_of(parent(self._root), module) if is_own else None

    def _searched(self, folder: str) -> Iterator[str]:
        """Iterate over a folder and those above it, up to the project's."""
        yield folder
        while folder != self._root and folder != parent(folder):
            folder = parent(folder)
            yield folder

    def _is_package(self, folder: str) -> bool:
        return self._has_file(f"{folder}/__init__.py")

    def _file_of(self, folder: str, module: str) -> str | None:
        base = f"{folder}/{module}" if module else folder
        names = [f"{base}.py", f"{base}/__init__.py"] if module else [f"{base}/__init__.py"]
        return next((name for name in names if self._has_file(name)), None)


def parent(path: str) -> str:
    """Return the folder of a path."""
    return path.rpartition("/")[0] or "/"
