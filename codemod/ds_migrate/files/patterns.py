"""Patterns of the files that a run leaves out: ``--include``, ``--exclude``, and ``.gitignore`` where there is no git.

Patterns are those of ``.gitignore``. They are matched by ``pathspec``, which is imported once there is a pattern.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ds_migrate.files.limits import MOST_PATTERNS

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

_STARS = re.compile(r"\*+")


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
    """The ``.gitignore`` files on the way down to a folder, the deepest deciding first, as git has it.

    ``problem`` states why a part of the deepest one is not applied; None where all of it is.
    """

    def __init__(self, above: Ignored | None, folder: str) -> None:
        self._above = above
        self._folder = folder.rstrip("/") + "/"
        lines = _lines(self._folder + ".gitignore")
        slow = slow_patterns(lines)
        self._spec = _spec([line for line in lines[:MOST_PATTERNS] if line not in slow])
        self.problem = f"its pattern {slow[0]} has too many wildcards to be matched" if slow else None
        if len(lines) > MOST_PATTERNS:
            self.problem = f"it has {len(lines)} lines, and {MOST_PATTERNS} are applied"

    def __call__(self, name: str, is_folder: bool) -> bool:
        inside = name.removeprefix(self._folder) + ("/" if is_folder else "")
        ignored = self._spec.check_file(inside).include
        if ignored is None:
            return self._above is not None and self._above(name, is_folder)
        return ignored


def slow_patterns(patterns: Iterable[str]) -> list[str]:
    """Return the patterns that may take minutes to match one name.

    A regular expression tries every way to divide a name among the wildcards, so there is a most of them: three ``*``
    in one part of a path, two ``**`` in the path.
    """
    return [
        pattern
        for pattern in patterns
        if any(len(_STARS.findall(part)) > 3 for part in pattern.split("/")) or pattern.count("**") > 2
    ]


def _spec(patterns: Iterable[str]) -> GitIgnoreSpec:
    from pathspec import GitIgnoreSpec

    return GitIgnoreSpec.from_lines(patterns)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []
