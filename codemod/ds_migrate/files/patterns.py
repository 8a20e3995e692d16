"""Patterns of the files that a run leaves out: ``--include``, ``--exclude``, and ``.gitignore`` where there is no git.

Patterns are those of ``.gitignore``. They are matched by ``pathspec``, which is imported once there is a pattern.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec


class Selection:
    """A test whether a file (absolute, links resolved) belongs to the run. Patterns are relative to ``base``."""

    def __init__(self, base: str, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> None:
        self._base = base.rstrip("/") + "/"
        self._include = _spec(include) if include else None
        self._exclude = _spec(exclude) if exclude else None

    def __call__(self, name: str) -> bool:
        if not name.startswith(self._base):
            return self._include is None
        inside = name.removeprefix(self._base)
        if self._exclude is not None and self._exclude.match_file(inside):
            return False
        return self._include is None or self._include.match_file(inside)


class Ignored:
    """The ``.gitignore`` files on the way down to a folder, the deepest deciding first, as git has it."""

    def __init__(self, above: Ignored | None, folder: str) -> None:
        self._above = above
        self._folder = folder.rstrip("/") + "/"
        self._spec = _spec(_lines(self._folder + ".gitignore"))

    def __call__(self, name: str, is_folder: bool) -> bool:
        inside = name.removeprefix(self._folder) + ("/" if is_folder else "")
        ignored = self._spec.check_file(inside).include
        if ignored is None:
            return self._above is not None and self._above(name, is_folder)
        return ignored


def _spec(patterns: Iterable[str]) -> GitIgnoreSpec:
    from pathspec import GitIgnoreSpec

    return GitIgnoreSpec.from_lines(patterns)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []
