"""Files of the project that a trial's files import and that stay as they are: what training calls there is followed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from ds_migrate.files.limits import LARGEST_MODULE
from ds_migrate.syntax.source import SourceError, SourceFile


class HelperFiles:
    """Imported files, each parsed when a name that it defines is called.

    ``are_all_read`` is False once a file was asked for that does not parse, or more bytes than are followed.
    """

    def __init__(self, sources: Mapping[Path, bytes]) -> None:
        self._sources = sources
        self._parsed: dict[Path, SourceFile | None] = {}
        self._room = LARGEST_MODULE
        self.are_all_read = True
        self.defining = cache(self._defining)

    def __contains__(self, file: SourceFile) -> bool:
        return self._parsed.get(file.path) is file

    def _defining(self, name: str) -> tuple[SourceFile, ...]:
        """Return the files that define a function, method or class of this name."""
        return self.matching(
            re.compile(rb"^[ \t]*(?:async def|def|class)\s+%b\b" % re.escape(name.encode()), re.MULTILINE)
        )

    def matching(self, pattern: re.Pattern[bytes]) -> tuple[SourceFile, ...]:
        """Return the files in which the pattern is found."""
        files = (self._parse(path, data) for path, data in sorted(self._sources.items()) if pattern.search(data))
        return tuple(file for file in files if file is not None)

    def _parse(self, path: Path, data: bytes) -> SourceFile | None:
        if path not in self._parsed:
            self._room -= len(data)
            try:
                self._parsed[path] = SourceFile(path, data, frozenset()) if self._room >= 0 else None
            except SourceError:
                self._parsed[path] = None
        self.are_all_read &= self._parsed[path] is not None
        return self._parsed[path]


NO_HELPERS = HelperFiles({})
