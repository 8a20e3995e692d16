"""Comments that control a run, and markers that an earlier run left.

``# ds-migrate: skip`` on a class leaves that trial as it is. ``# ds-migrate: ignore[DSM350]`` accepts a *review*
finding of its line. Neither can make a conversion wrong: a *blocked* finding stays blocked, and a *converted* one keeps
its numbers anyway. A marker (``# TODO(ds-migrate DSM...)``) is reported until somebody has deleted it.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ds_migrate.files.discovery import CONFIG_SUFFIXES

_CONTROL = re.compile(r"#\s*ds-migrate:\s*(?P<word>[^\s\[]*)\s*(?:\[(?P<codes>[^\]]*)\]?)?", re.IGNORECASE)
_MARKER = re.compile(r"#\s*TODO\(ds-migrate DSM\d+\)")
_YAML_COMMENT = re.compile(r"(?:^|\s)(#.*)")


@dataclass(frozen=True)
class Comment:
    """A control comment. ``line`` and ``column`` (both from 1) are its own; ``target`` is the line that it is about:
    its own, or the next one with code when it has the line to itself."""

    word: str
    codes: tuple[str, ...]
    line: int
    column: int
    target: int

    @property
    def is_skip(self) -> bool:
        return self.word == "skip"


@dataclass(frozen=True)
class Marker:
    """A marker as it stands: ``line`` and ``column`` from 1."""

    line: int
    column: int
    text: str


@dataclass(frozen=True)
class Comments:
    """The comments of one file that concern this tool."""

    controls: tuple[Comment, ...] = ()
    markers: tuple[Marker, ...] = ()

    @property
    def skips(self) -> list[Comment]:
        return [comment for comment in self.controls if comment.is_skip]

    @property
    def accepted(self) -> frozenset[tuple[int, str]]:
        """(line, code) of every finding that a comment accepts if it is a *review*."""
        ignores = [comment for comment in self.controls if comment.word == "ignore"]
        return frozenset((line, code) for c in ignores for line in (c.line, c.target) for code in c.codes)


def read_comments(data: bytes, is_python: bool = True) -> Comments:
    """Return the comments of a Python module or a YAML file that concern this tool."""
    if b"ds-migrate" not in data:
        return Comments()
    lines = data.decode("utf-8", "replace").split("\n")
    found = list(_python_comments(data, lines) if is_python else _yaml_comments(lines))
    return Comments(tuple(_controls(found, lines)), tuple(_markers(found)))


class CommentReader:
    """Reads the comments of files by path, each once. ``read`` gives a file's bytes, of a notebook its module."""

    def __init__(self, read: Callable[[Path], bytes | None]) -> None:
        self._read = read
        self._known: dict[Path, Comments] = {}

    def __call__(self, path: Path) -> Comments:
        if path not in self._known:
            self._known[path] = read_comments(self._read(path) or b"", path.suffix not in CONFIG_SUFFIXES)
        return self._known[path]

    def forget(self, path: Path) -> None:
        """Read the comments of a file anew when they are asked for next."""
        self._known.pop(path, None)


_Place = tuple[int, int, str]  # line from 1, column from 0, text


def _python_comments(data: bytes, lines: list[str]) -> Iterator[_Place]:
    """Yield each comment; strings that look like one are none. Where a module does not tokenize, its lines are taken
    for comments that may hold a marker."""
    done = 0
    try:
        for token in tokenize.tokenize(io.BytesIO(data).readline):
            done = token.start[0]
            if token.type == tokenize.COMMENT:
                yield *token.start, token.string
    except (SyntaxError, tokenize.TokenError, ValueError):
        for number, line in enumerate(lines[done:], done + 1):
            if marker := _MARKER.search(line):
                yield number, marker.start(), line[marker.start() :]


def _yaml_comments(lines: list[str]) -> Iterator[_Place]:
    for number, line in enumerate(lines, 1):
        if found := _YAML_COMMENT.search(line):
            yield number, found.start(1), found[1]


def _controls(places: Iterable[_Place], lines: list[str]) -> Iterator[Comment]:
    next_code = _next_lines_with_code(lines)
    for line, column, text in places:
        found = _CONTROL.search(text)
        if found is None:
            continue
        codes = tuple(code.strip().upper() for code in (found["codes"] or "").split(",") if code.strip())
        target = line
        if lines[line - 1].lstrip().startswith("#"):
            target = next_code[line] or line
        yield Comment(found["word"].lower(), codes, line, column + found.start() + 1, target)


def _next_lines_with_code(lines: list[str]) -> list[int]:
    """Return, for each line (from 0), the number of the first line from it on that holds code; 0 without one."""
    found = [0] * (len(lines) + 1)
    for index in range(len(lines) - 1, -1, -1):
        text = lines[index].strip()
        found[index] = index + 1 if text and not text.startswith("#") else found[index + 1]
    return found


def _markers(places: Iterable[_Place]) -> Iterator[Marker]:
    for line, column, text in places:
        if found := _MARKER.search(text):
            yield Marker(line, column + found.start() + 1, text[found.start() :].strip())
