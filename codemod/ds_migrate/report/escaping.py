"""Text of unknown origin, made safe to show: nothing in it can move the cursor, hide, or reorder what is read."""

from __future__ import annotations

import unicodedata

from ds_migrate.findings import FileKind, FileResult, Finding

# Control and format characters (escape sequences, bidirectional overrides), undecodable bytes, line separators.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def visible(text: str) -> str:
    """Return ``text`` with an escape for every character that a terminal would obey instead of show."""
    return text if text.isascii() and text.isprintable() else "".join(map(_shown, text))


def encoding_of(file: FileResult, data: bytes) -> str:
    """Return the encoding of one version of the file, as Python reads it."""
    if file.kind is not FileKind.PYTHON:
        return "utf-8"
    import io
    import tokenize

    try:
        return tokenize.detect_encoding(io.BytesIO(data).readline)[0]
    except SyntaxError:
        return "utf-8"


def place(file: FileResult, finding: Finding) -> str:
    """Return ``path:line:column`` as far as known, with the cell in a notebook."""
    cell = "" if finding.cell is None else f":cell {finding.cell}"
    line = f":{finding.line}" if finding.line else ""
    column = f":{finding.column}" if finding.line and finding.column else ""
    return f"{visible(str(file.path))}{cell}{line}{column}"


def _shown(character: str) -> str:
    if unicodedata.category(character) not in _HIDDEN:
        return character
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was no text (PEP 383)
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")
