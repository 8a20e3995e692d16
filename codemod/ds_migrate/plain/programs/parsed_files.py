"""The files of a run: each is parsed once for all programs that read it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from ds_migrate.plain.programs.program import Program
from ds_migrate.syntax.source import SourceFile


class ParsedFiles:
    """Parsed files, kept for as long as programs that read them are left.

    Args:
        programs: those that are going to be converted, one after the other.
    """

    def __init__(self, programs: Iterable[Program]) -> None:
        self._waiting = Counter(path for program in programs for path in program.paths)
        self._files: dict[Path, SourceFile] = {}

    def expect(self, program: Program) -> None:
        """Keep the files of a program that is going to be converted once more."""
        self._waiting.update(program.paths)

    def open(self, path: Path, data: bytes, reported_lines: Sequence[int] = ()) -> SourceFile:
        """Return a parsed file without edits. Raises ``SourceError`` for one that cannot be worked on."""
        known = self._files.get(path)
        if known is None or known.data != data:
            known = self._files[path] = SourceFile(path, data, reported_lines=reported_lines)
        return known

    def finish(self, program: Program) -> None:
        """Take back the edits of a program, and let go of files that no other one reads."""
        for path in program.paths:
            self._waiting[path] -= 1
            if path in self._files and self._waiting[path] > 0:
                self._files[path].restart()
            elif path in self._files:
                self._files.pop(path).close()
