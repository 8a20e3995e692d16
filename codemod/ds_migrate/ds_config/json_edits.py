"""The lines of the keys of a JSON text, and a text edit that adds keys and keeps every other character."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_DECODER = json.JSONDecoder(strict=False)
_BLANKS = " \t\r\n"


@dataclass(frozen=True)
class _Pair:
    key: str
    start: int  # of the key
    value: int
    end: int  # of the value


def _skip(text: str, offset: int) -> int:
    while offset < len(text) and text[offset] in _BLANKS:
        offset += 1
    return offset


def _pairs(text: str, brace: int) -> Iterator[_Pair]:
    """The pairs of the object that opens at ``brace``, in a text known to be valid."""
    offset = _skip(text, brace + 1)
    while text[offset] != "}":
        key, end = _DECODER.raw_decode(text, offset)
        value = _skip(text, _skip(text, end) + 1)
        _, value_end = _DECODER.raw_decode(text, value)
        yield _Pair(key, offset, value, value_end)
        offset = _skip(text, value_end)
        if text[offset] == ",":
            offset = _skip(text, offset + 1)


def keys_on_lines(text: str) -> dict[str, int]:
    """Dotted key -> line from 1, for the object's keys and those of the objects in it (two levels)."""
    lines: dict[str, int] = {}
    for pair in _pairs(text, text.index("{")):
        lines[pair.key] = text.count("\n", 0, pair.start) + 1
        if text[pair.value] == "{":
            for inner in _pairs(text, pair.value):
                lines[f"{pair.key}.{inner.key}"] = text.count("\n", 0, inner.start) + 1
    return lines


def add_pairs(text: str, pairs: Mapping[str, object]) -> str:
    """The text of a valid JSON object with more keys, laid out as the others are."""
    brace = text.index("{")
    existing = list(_pairs(text, brace))
    newline = "\r\n" if "\r\n" in text else "\n"
    if not existing:
        close = text.index("}", brace)
        body = json.dumps(dict(pairs), indent=2, ensure_ascii=False).replace("\n", newline)
        return text[:brace] + body + text[close + 1 :]
    last = existing[-1]
    before = text[text.rfind("\n", 0, last.start) + 1 : last.start]
    if before.strip() or "\n" not in text[: last.start]:  # several pairs on a line
        added = "".join(f", {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in pairs.items())
        return text[: last.end] + added + text[last.end :]
    added = ""
    for key, value in pairs.items():
        shown = json.dumps(value, indent=before or 2, ensure_ascii=False).replace("\n", newline + before)
        added += f",{newline}{before}{json.dumps(key)}: {shown}"
    return text[: last.end] + added + text[last.end :]
