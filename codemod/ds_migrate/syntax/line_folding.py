"""Fold generated lines that are too long at their brackets."""

from __future__ import annotations

import ast
import io
import re
import tokenize

WIDTH = 120
_INDENT = 4
_IMPORTED = re.compile(r"^(from \S+ import )([\w, ]+)$")
_FORMATTED = re.compile(r"\b[rR]?[fFtT][rR]?[\"']")


def fold(code: str, column: int, width: int = WIDTH) -> str:
    """Fold the long lines of statements written with ``\\n`` and four spaces, to begin at ``column`` (from 0)."""
    return "\n".join(part for line in code.split("\n") for part in _folded(line, width - column))


def _folded(line: str, room: int) -> list[str]:
    """Return the line, or its outermost brackets opened: their contents on separate lines, one for each comma."""
    if len(line) <= room or "#" in line:
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
    if joined and depth + _INDENT + len(joined) <= room:
        pieces = [joined]
    elif commas and not pieces[-1].endswith(","):
        pieces[-1] += ","
    inside = [part for piece in pieces for part in _folded(" " * (depth + _INDENT) + piece, room)]
    return [line[: opening + 1], *inside, *_folded(" " * depth + line[closing:], room)]


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


def fold_new(before: bytes, after: bytes, indent: str, width: int = WIDTH) -> bytes:
    """Return the converted file with lines folded that the conversion made longer than the original's lines may be.

    Heads of functions and lines with strings that are formatted stay. Both files must parse.

    Args:
        width: the columns of a line, unless the original has longer ones.
    """
    known = set(before.splitlines())
    width = max([width, *map(len, known)])
    lines = after.splitlines(keepends=True)
    long = [i for i, line in enumerate(lines) if _is_new(line.rstrip(b"\r\n"), width, known)]
    continued = _continued(after) if long else set()
    for index in long:
        text = lines[index].rstrip(b"\r\n")
        newline = lines[index][len(text) :].decode()
        if index in continued:
            closing = lines[index + 1].lstrip()[:1] in (b")", b"]", b"}") if index + 1 < len(lines) else False
            parts = _divided(text.decode(), width, closing) or _fold_one(text.decode(), indent, width)
        else:
            parts = _fold_one(text.decode(), indent, width)
        lines[index] = "".join(part + newline for part in parts).encode()
    folded = b"".join(lines)
    if folded == after:
        return after
    return folded if ast.dump(ast.parse(folded)) == ast.dump(ast.parse(after)) else after


def _is_new(line: bytes, width: int, known: set[bytes]) -> bool:
    return len(line) > width and line not in known and line.isascii()


def _continued(source: bytes) -> set[int]:
    """Return the indices of the lines that begin inside a bracket."""
    found: set[int] = set()
    depth, line = 0, 0
    for token in tokenize.tokenize(io.BytesIO(source).readline):
        if token.start[0] != line:
            line = token.start[0]
            if depth:
                found.add(line - 1)
        if token.type == tokenize.OP:
            depth += (token.string in "([{") - (token.string in ")]}")
    return found


def _divided(line: str, width: int, closing: bool) -> list[str]:
    """Return a line inside brackets divided at its outer commas; nothing where it has none.

    Args:
        closing: whether the next line closes the bracket: then each element gets a line, else as many as fit.
    """
    body = line.lstrip(" ")
    start = line[: len(line) - len(body)]
    commas = _outer_commas(body)
    if body.startswith(("\t", "#")) or _FORMATTED.search(body) or "#" in body or not commas:
        return []
    ends = [*(comma + 1 for comma in commas), len(body)]
    pieces = [body[a:b].strip() for a, b in zip([0, *ends], ends, strict=False)]
    pieces = [piece for piece in pieces if piece]
    if closing:
        return [start + piece for piece in (*pieces[:-1], pieces[-1].removesuffix(",") + ",")]
    rows = [pieces[0]]
    for piece in pieces[1:]:
        if len(start) + len(rows[-1]) + 1 + len(piece) <= width:
            rows[-1] += f" {piece}"
        else:
            rows.append(piece)
    return [start + row for row in rows]


def _outer_commas(body: str) -> list[int]:
    """Return the columns of the commas outside the brackets of a line that begins inside one."""
    depth, commas = 0, list[int]()
    try:
        for token in tokenize.generate_tokens(io.StringIO(body).readline):
            if token.string in ("for", "lambda") and depth == 0:  # their commas part no elements
                return []
            if token.type == tokenize.OP:
                depth += (token.string in "([{") - (token.string in ")]}")
                if token.string == "," and depth == 0:
                    commas.append(token.start[1])
    except (tokenize.TokenError, IndentationError):
        pass  # the line opens or closes a bracket of other lines
    return commas


def _fold_one(line: str, indent: str, width: int) -> list[str]:
    body = line.lstrip(" ")
    if body.startswith(("def ", "async ", "\t")) or _FORMATTED.search(body) or "\t" in line:
        return [line]
    start = line[: len(line) - len(body)]
    parts = fold(_IMPORTED.sub(r"\1(\2)", body), len(start), width).split("\n")
    levels = ((len(part) - len(part.lstrip(" "))) // _INDENT for part in parts)
    return [f"{start}{indent * n}{part.lstrip(' ')}" for n, part in zip(levels, parts, strict=True)]
