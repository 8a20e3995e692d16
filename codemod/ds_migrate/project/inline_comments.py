"""Comments that steer the tool where they stand: ``# ds-migrate: skip`` and ``# ds-migrate: ignore[DSM350]``.

``skip`` on a class leaves that trial as it is. ``ignore`` accepts what a *review* finding of that line says. Neither
can make a conversion wrong: a *blocked* finding stays blocked whatever a comment says, and a finding that is
*converted* keeps its numbers anyway.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass

WORD = b"ds-migrate:"
_COMMENT = re.compile(r"#\s*ds-migrate:\s*(?P<word>[^\s\[]*)\s*(?:\[(?P<codes>[^\]]*)\]?)?", re.IGNORECASE)


@dataclass(frozen=True)
class Comment:
    """One such comment. ``line`` (from 1) and ``column`` (from 1) are its own; ``target`` is the line that it is about:
    its own, or the next one with code when it has the line to itself."""

    word: str
    codes: tuple[str, ...]
    line: int
    column: int
    target: int

    @property
    def skips(self) -> bool:
        return self.word == "skip"

    def ignores(self, code: str) -> bool:
        return self.word == "ignore" and code in self.codes


def comments_in(data: bytes, python: bool = True) -> tuple[Comment, ...]:
    """The comments of a Python module, or of a YAML file. There are none in Python that does not tokenize."""
    if WORD not in data:
        return ()
    lines = data.decode("utf-8", "replace").split("\n")
    places = _python_comments(data) if python else _yaml_comments(lines)
    return tuple(_comments(places, lines))


def _comments(places: Iterator[tuple[int, int, str]], lines: list[str]) -> Iterator[Comment]:
    for line, column, text in places:
        found = _COMMENT.search(text)
        if found is None:
            continue
        codes = tuple(code.strip().upper() for code in (found["codes"] or "").split(",") if code.strip())
        target = line
        if lines[line - 1].lstrip().startswith("#"):
            below = enumerate(lines[line:], line + 1)
            target = next((at for at, text in below if text.strip() and not text.lstrip().startswith("#")), line)
        yield Comment(found["word"].lower(), codes, line, column + found.start() + 1, target)


def _python_comments(data: bytes) -> Iterator[tuple[int, int, str]]:
    """(line from 1, column from 0, text) of each comment; strings that look like one are none."""
    import tokenize  # takes milliseconds, and files with such a comment are rare

    try:
        for token in tokenize.tokenize(io.BytesIO(data).readline):
            if token.type == tokenize.COMMENT:
                yield *token.start, token.string
    except (SyntaxError, tokenize.TokenError, ValueError):
        return


def _yaml_comments(lines: list[str]) -> Iterator[tuple[int, int, str]]:
    for number, line in enumerate(lines, 1):
        found = re.search(r"(?:^|\s)(#.*)", line)
        if found:
            yield number, found.start(1), found[1]
