"""Whether a file without a word of a trial in it may still hold one: through a base class in an unnamed file.

pre-commit passes the files of a commit alone. ``class Derived(Base)`` is a trial when ``Base`` in ``base.py`` is, so
the imports that bring base classes are followed, on bytes, until a file speaks of a PyTorchTrial or the project ends.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cached_property

from ds_migrate.files.discovery import Source, read_file
from ds_migrate.files.prefilter import TRIAL_SIGNS

_IMPORT = re.compile(
    rb"^[ \t]*(?:from[ \t]+(\.*)[ \t]*([\w.]*)[ \t]+import[ \t]*(?:\(([^)]*)\)|([^#\n]*))|import[ \t]+([^#\n]+))", re.M
)
_BOUND = re.compile(rb"([\w.]+|\*)(?:\s+as\s+(\w+))?")
_BASES = re.compile(rb"^[ \t]*class[ \t]+\w+[ \t]*\(([^)]*)\)", re.M)
_WORD = re.compile(rb"[^\W\d]\w*")


def keep_derived(sources: list[Source]) -> None:
    """Keep the bytes of those Python files with a class whose base, however indirectly, a file with a trial defines."""
    modules = _Modules()
    for source in sources:
        if source.error is None and source.data is None and source.name.endswith(".py"):
            facts = modules.facts(source.real_name)
            if facts is not None and facts.bases and modules.reach_trial(source.real_name, source.root_name):
                source.data = facts.data


def hold_no_trial(sources: list[Source]) -> bool:
    """Whether none of the files can define a trial, or has a comment to this tool, whatever words they hold: then the
    project around them need not be known. Most files with the word ``determined`` are such."""
    modules = _Modules()
    for source in sources:
        data = source.data
        if data is None or source.error is not None:
            continue
        if b"-migrate" in data or source.name.endswith(".ipynb") or any(sign in data for sign in TRIAL_SIGNS):
            return False
        facts = modules.facts(source.real_name)
        if facts is None or (facts.bases and modules.reach_trial(source.real_name, source.root_name, TRIAL_SIGNS)):
            return False
    return True


class _Facts:
    """Of one file: the words its classes are based on, and which modules its imports bind to which names."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.bases = frozenset(word for bases in _BASES.findall(data) for word in _WORD.findall(bases))

    @cached_property
    def imports(self) -> dict[bytes, list[tuple[int, str, bytes]]]:
        """(leading dots, module, its name for it) by the name that is bound; ``*`` stands for any name."""
        bound: dict[bytes, list[tuple[int, str, bytes]]] = {}
        for dots, module, in_brackets, on_line, plain in _IMPORT.findall(self.data):
            for name, alias in _BOUND.findall(plain or in_brackets or on_line):
                if plain:
                    bound.setdefault(alias or name.partition(b".")[0], []).append((0, name.decode(), name))
                else:
                    modules = (module, (module + b"." + name).strip(b"."))
                    bound.setdefault(alias or name, []).extend((len(dots), m.decode(), name) for m in modules)
        return bound


class _Modules:
    """The files met on the way, each read once, each folder listed once."""

    def __init__(self) -> None:
        self._facts: dict[str, _Facts | None] = {}
        self._listed: dict[str, frozenset[str]] = {}

    def facts(self, path: str) -> _Facts | None:
        if path not in self._facts:
            try:
                self._facts[path] = _Facts(read_file(path))
            except OSError:
                self._facts[path] = None
        return self._facts[path]

    def reach_trial(self, start: str, root: str, signs: tuple[bytes, ...] = (b"PyTorchTrial",)) -> bool:
        seen: set[tuple[str, bytes]] = set()
        waiting: list[tuple[str, frozenset[bytes]]] = [(start, frozenset())]
        while waiting:
            path, asked_for = waiting.pop()
            facts = self.facts(path)
            if facts is None:
                continue
            if any(sign in facts.data for sign in signs):
                return True
            names = facts.bases | asked_for
            new = frozenset(name for name in names if (path, name) not in seen)
            seen.update((path, name) for name in new)
            for name in new and new | {b"*"}:
                for dots, module, original in facts.imports.get(name, ()):
                    waiting.extend((found, names | {original}) for found in self._files(path, dots, module, root))
        return False

    def _files(self, path: str, dots: int, module: str, root: str) -> Iterator[str]:
        """The project's files that a module's name may mean, seen from ``path``."""
        *packages, last = module.split(".") if module else [""]
        for folder in _folders(path, dots, root):
            within = "/".join((folder, *packages))
            if f"{last}.py" in self._names(within):
                yield f"{within}/{last}.py"
            if "__init__.py" in self._names(f"{within}/{last}".rstrip("/")):
                yield f"{within}/{last}/__init__.py"

    def _names(self, folder: str) -> frozenset[str]:
        if folder not in self._listed:
            try:
                self._listed[folder] = frozenset(os.listdir(folder))  # noqa: PTH208 - names, not paths
            except OSError:
                self._listed[folder] = frozenset()
        return self._listed[folder]


def _parents(path: str) -> Iterator[str]:
    while (folder := os.path.dirname(path)) != path:  # noqa: PTH120 - as text, pathlib is not there
        yield folder
        path = folder


def _folders(path: str, dots: int, root: str) -> Iterator[str]:
    """Where a module may lie: a relative import says it, any other is looked for beside the file and above."""
    parents = list(_parents(path))
    if dots:
        yield parents[min(dots, len(parents)) - 1]
        return
    for folder in parents:
        yield folder
        yield f"{folder}/src"
        if folder == root:
            return
