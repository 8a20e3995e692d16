"""Files of a project that a module imports by names of which only their package is written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ds_migrate.project.import_resolver import ImportResolver

_MOST = 30  # files of a package: more are a collection, of which a program needs a few
_IMPORT = re.compile(rb"\b(?:import_module|__import__)\s*\(\s*[fF]?[\"']([\w.]*)\.(?:[\"'{]|%s)")


def imports_by_name(data: bytes) -> bool:
    """Return whether a module may import others of a package by names that are made when it runs."""
    return _IMPORT.search(data) is not None


class Folders:
    """The files of a project by the folders that they are in."""

    def __init__(self, names: Iterable[str]) -> None:
        self._files: dict[str, list[str]] = {}
        for name in names:
            self._files.setdefault(name.rpartition("/")[0], []).append(name)

    def imported_by(self, name: str, data: bytes, resolver: ImportResolver) -> Iterator[str]:
        """Yield what ``import_module("models." + name)`` may import: the files of that package, where they are few."""
        for package in {match.decode() for match in _IMPORT.findall(data)}:
            folder = self._folder(name, package, resolver)
            found = [one for one in self._files.get(folder, ()) if one != name and not one.endswith("/__init__.py")]
            yield from found if len(found) <= _MOST else ()

    def _folder(self, name: str, package: str, resolver: ImportResolver) -> str:
        """Return the folder of a package as a file names it; that of the file itself where only a dot is written."""
        plain = package.lstrip(".")
        own = name.rpartition("/")[0]
        if not plain:
            return own
        found = resolver.resolve(name, plain, 1 if plain != package else 0)
        if found is not None:
            return found.removesuffix("/__init__.py")
        path = plain.replace(".", "/")
        folders = [f"{own}/{path}", *(f"{above}/{path}" for above in _above(own))]
        return next((folder for folder in folders if folder in self._files), "")


def _above(folder: str) -> Iterator[str]:
    while folder := folder.rpartition("/")[0]:
        yield folder
