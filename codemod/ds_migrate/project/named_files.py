"""The files that concern a migration, of those that were named one by one.

pre-commit passes the files of a commit alone. ``class Derived(Base)`` is a trial when ``Base`` in ``base.py`` is, so
the imports that bring base classes are followed, on bytes, until a file holds a word of a trial or the project ends. In
most files that hold such a word nothing defines a trial: then the project around them need not be known at all.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from functools import cached_property

from ds_migrate.files.discovery import CONFIG_SUFFIXES, Source
from ds_migrate.files.prefilter import TRIAL_SIGNS, may_hold_trial
from ds_migrate.files.regular_file import read_file
from ds_migrate.project.import_resolver import ImportResolver

_IMPORT = re.compile(  # no two runs of blanks side by side: a long one would be divided in every way
    rb"""^[ \t]*(?:
        from[ \t]+(?=[.\w])(\.*)[ \t]*(?=\w)(?:((?!import\b)\w[\w.]*)[ \t]+)?import[ \t]*(?:\(([^)]*)\)|([^\#\n]*))
        |import[ \t]+([^\#\n]+)
    )""",
    re.M | re.X,
)
_BOUND = re.compile(rb"([\w.]+|\*)(?:\s+as\s+(\w+))?")
_BASES = re.compile(rb"^[ \t]*class[ \t]+\w+[ \t]*\(([^)]*)\)", re.M)
_WORD = re.compile(rb"[^\W\d]\w*")


def keep_concerned(sources: Sequence[Source]) -> None:
    """Let go of the bytes of Python files that cannot concern a migration."""
    files = _Files(sources)
    for source in sources:
        if source.data is None or not source.is_named_itself or source.name.endswith(CONFIG_SUFFIXES):
            continue
        if not may_hold_trial(source.data) and not files.reaches(source, (b"PyTorchTrial",)):
            source.data = None
    kept = [source for source in sources if source.data is not None]
    if all(source.is_named_itself for source in sources) and not any(_may_concern(source, files) for source in kept):
        for source in kept:
            source.data = None


def _may_concern(source: Source, files: _Files) -> bool:
    """Return whether a file can define a trial, or has a comment to this tool."""
    data = source.data or b""
    if b"-migrate" in data or source.name.endswith(".ipynb") or any(sign in data for sign in TRIAL_SIGNS):
        return True
    return not source.name.endswith(CONFIG_SUFFIXES) and files.reaches(source, TRIAL_SIGNS)


class _Bases:
    """The words that the classes of one file are based on, and the modules that its imports bind to names."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._closed = data.rfind(b")") + 1  # what is never closed would be searched from each opening to the end
        closed = data[: self._closed]
        self.words = frozenset(word for bases in _BASES.findall(closed) for word in _WORD.findall(bases))

    @cached_property
    def imports(self) -> dict[bytes, list[tuple[int, str, bytes]]]:
        """(leading dots, module, its name for it) by the name that is bound; ``*`` means any name."""
        bound: dict[bytes, list[tuple[int, str, bytes]]] = {}
        found = _IMPORT.findall(self.data[: self._closed])
        found += _IMPORT.findall(self.data[self._closed :].replace(b"(", b" "))
        for dots, module, in_brackets, on_line, plain in found:
            for name, alias in _BOUND.findall(plain or in_brackets or on_line):
                if plain:
                    bound.setdefault(alias or name.partition(b".")[0], []).append((0, name.decode(), name))
                else:
                    modules = (module, (module + b"." + name).strip(b"."))
                    bound.setdefault(alias or name, []).extend((len(dots), m.decode(), name) for m in modules)
        return bound


class _Files:
    """The files met on the way, each read once."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._bases = {s.real_name: _Bases(s.data) for s in sources if s.data is not None and s.is_named_itself}

    def reaches(self, source: Source, signs: Collection[bytes]) -> bool:
        """Return whether a class of the file is built, however indirectly, on one of a file that holds a sign."""
        resolver = ImportResolver(source.root_name, os.path.isfile)
        seen: set[tuple[str, bytes]] = set()
        waiting: list[tuple[str, frozenset[bytes]]] = [(source.real_name, frozenset())]
        while waiting:
            path, wanted = waiting.pop()
            bases = self._of(path)
            if bases is None:
                continue
            if any(sign in bases.data for sign in signs):
                return True
            names = bases.words | wanted
            new = frozenset(name for name in names if (path, name) not in seen)
            seen.update((path, name) for name in new)
            for name in new and new | {b"*"}:
                for dots, module, original in bases.imports.get(name, ()):
                    found = resolver.resolve(path, module, dots)
                    if found is not None:
                        waiting.append((found, names | {original}))
        return False

    def _of(self, path: str) -> _Bases | None:
        if path not in self._bases:
            try:
                self._bases[path] = _Bases(read_file(path))
            except OSError:
                return None
        return self._bases[path]
