"""Fold generated lines that are too long at their brackets."""

from __future__ import annotations

import ast
import io
import re
import tokenize

WIDTH = 120
_INDENT = 4
_FORMATTED = re.compile(r"\b[rR]?[fFtT][rR]?[\"']")


def fold(code: str, column: int) -> str:
    """Fold the long lines of statements written with ``\\n`` and four spaces, to begin at ``column`` (from 0)."""
    return "\n".join(part for line in code.split("\n") for part in _folded(line, column))


def _folded(line: str, column: int) -> list[str]:
    """Return the line, or its outermost brackets opened: their contents on separate lines, one for each comma."""
    if column + len(line) <= WIDTH or "#" in line:
        return [line]
    places = _outermost(line)
    if places is None:
        return [line]
    opening, commas, closing = places
    depth = len(line) - len(line.lstrip(" "))
    starts = [opening + 1, *(comma + 1 for comma in commas)]
    ends = [*(comma + 1 for comma in commas), closing]
    pieces = [line[start:end].strip() for start, end in zip(starts, ends, strict=True)]
    pieces = [piece for piece in pieces if piece]
    joined = " ".join(pieces).removesuffix(",") if commas and line[opening] == "(" else ""
    if joined and column + depth + _INDENT + len(joined) <= WIDTH:
        pieces = [joined]
    elif commas and not pieces[-1].endswith(","):
        pieces[-1] += ","
    inside = [part for piece in pieces for part in _folded(" " * (depth + _INDENT) + piece, column)]
    return [line[: opening + 1], *inside, *_folded(" " * depth + line[closing:], column)]


def _outermost(line: str) -> tuple[int, list[int], int] | None:
    """Return where the last outermost pair of brackets with content opens and closes, and the commas between."""
    depth, opening, commas, split = 0, 0, list[int](), True
    found: tuple[int, list[int], int] | None = None
    try:
        for token in tokenize.generate_tokens(io.StringIO(line.strip()).readline):
            at = token.start[1] + len(line) - len(line.lstrip(" "))
            if token.string in ("for", "lambda") and depth == 1:  # their commas part no elements
                split = False
            if token.type != tokenize.OP:
                continue
            if token.string in "([{":
                if depth == 0:
                    opening, commas, split = at, [], True
                depth += 1
            elif token.string in ")]}":
                depth -= 1
                if depth == 0 and at > opening + 1 and not _is_index(line, opening):
                    found = opening, commas if split else [], at
            elif token.string == "," and depth == 1:
                commas.append(at)
    except (tokenize.TokenError, IndentationError):
        return found
    return found


def _is_index(line: str, opening: int) -> bool:
    """Return whether the bracket takes an item or a type argument of what stands before it."""
    return line[opening] == "[" and line[opening - 1 : opening].isidentifier()


def fold_new(before: bytes, after: bytes, indent: str) -> bytes:
    """Return the converted file with lines folded that the conversion made longer than the original's lines may be.

    Heads of functions and lines with strings that are formatted stay. Both files must parse.
    """
    known = set(before.splitlines())
    width = max([WIDTH, *map(len, known)])
    lines = after.splitlines(keepends=True)
    for index, line in enumerate(lines):
        text = line.rstrip(b"\r\n")
        if len(text) > width and text not in known and text.isascii():
            lines[index] = _fold_one(text.decode(), indent, line[len(text) :].decode()).encode()
    folded = b"".join(lines)
    return folded if ast.dump(ast.parse(folded)) == ast.dump(ast.parse(after)) else after


def _fold_one(line: str, indent: str, newline: str) -> str:
    body = line.lstrip(" ")
    if body.startswith(("def ", "async ", "\t")) or _FORMATTED.search(body) or "\t" in line:
        return line + newline
    start = line[: len(line) - len(body)]
    parts = fold(body, len(start)).split("\n")
    levels = ((len(part) - len(part.lstrip(" "))) // _INDENT for part in parts)
    return "".join(f"{start}{indent * n}{part.lstrip(' ')}{newline}" for n, part in zip(levels, parts, strict=True))
