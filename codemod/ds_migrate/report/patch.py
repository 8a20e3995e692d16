"""The report as a unified diff, in the exact bytes that ``git apply`` and ``patch`` accept.

Lines end at a newline and nowhere else, so carriage returns, form feeds and bytes of any encoding pass through. The
headers are the plain ``---``/``+++`` pair, which git reads relative to the current folder (``diff --git`` headers would
be read relative to the top of the work tree).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path

from ds_migrate.findings import FileResult, Report
from ds_migrate.report.escaping import visible

CONTEXT = 3
_CLOSING = (b")", b"]", b"}", b"),", b"],", b"},")
_SLOW = 1000  # lines; above it, difflib's shortcut for repeated lines keeps its time linear


@dataclass(frozen=True)
class Change:
    """``before[old:old_end]`` becomes ``after[new:new_end]``, in lines from 0; equal unless ``changed``."""

    changed: bool
    old: int
    old_end: int
    new: int
    new_end: int


def split_lines(data: bytes) -> list[bytes]:
    """Return lines with their newline, as git sees them."""
    lines = data.split(b"\n")
    last = lines.pop()
    return [line + b"\n" for line in lines] + ([last] if last else [])


def changes(before: Sequence[bytes], after: Sequence[bytes]) -> list[Change]:
    """Return what changed, without lines around it."""
    return [change for hunk in hunks(before, after) for change in hunk if change.changed]


def size(file: FileResult) -> tuple[int, int]:
    """Return how many lines the change of a file adds and removes."""
    changed = changes(split_lines(file.before or b""), split_lines(file.after or b""))
    return sum(c.new_end - c.new for c in changed), sum(c.old_end - c.old for c in changed)


def hunks(before: Sequence[bytes], after: Sequence[bytes], context: int = CONTEXT) -> Iterator[list[Change]]:
    """Yield changes with ``context`` equal lines around them, those that touch joined into one hunk."""
    matcher = SequenceMatcher(None, before, after, autojunk=max(len(before), len(after)) > _SLOW)
    for group in matcher.get_grouped_opcodes(context):
        found = [Change(tag != "equal", *span) for tag, *span in group]
        if any(change.changed for change in found):  # difflib makes a group of two empty files
            yield list(_joined(found, before))


def _joined(changes: Sequence[Change], before: Sequence[bytes]) -> Iterator[Change]:
    """Join two changes with only a closing bracket between them: the bracket closes something else now."""
    held: Change | None = None
    for index, change in enumerate(changes):
        between = 0 < index < len(changes) - 1 and not change.changed
        if between and all(line.strip() in _CLOSING for line in before[change.old : change.old_end]):
            change = replace(change, changed=True)
        if held is not None and held.changed and change.changed:
            held = Change(True, held.old, change.old_end, held.new, change.new_end)
            continue
        if held is not None:
            yield held
        held = change
    if held is not None:
        yield held


def file_patch(name: str, before: bytes | None, after: bytes) -> bytes:
    """Return the patch of one file; ``before`` is None for a file to create. Empty when nothing changes."""
    old, new = split_lines(before or b""), split_lines(after)
    body = b"".join(_hunk(changes, old, new) for changes in hunks(old, new))
    if not body:
        return b""
    source = b"/dev/null" if before is None else _name("a/" + name)
    return b"--- " + source + b"\n+++ " + _name("b/" + name) + b"\n" + body


def patch(report: Report, base: Path) -> bytes:
    """Return all changes of the report, in its order, with names relative to ``base`` (absolute, links resolved)."""
    return b"".join(_patch_of(file, base) for file in report.files if file.to_write)


def _patch_of(file: FileResult, base: Path) -> bytes:
    name = os.path.relpath(os.path.realpath(file.path), base)
    return file_patch(name, file.before, file.after or b"")


def _hunk(changes: Sequence[Change], old: Sequence[bytes], new: Sequence[bytes]) -> bytes:
    first, last = changes[0], changes[-1]
    header = f"@@ -{_range(first.old, last.old_end)} +{_range(first.new, last.new_end)} @@\n".encode()
    lines = []
    for change in changes:
        if change.changed:
            lines += [b"-" + line for line in old[change.old : change.old_end]]
            lines += [b"+" + line for line in new[change.new : change.new_end]]
        else:
            lines += [b" " + line for line in old[change.old : change.old_end]]
    return header + b"".join(line if line.endswith(b"\n") else line + _NO_NEWLINE for line in lines)


_NO_NEWLINE = b"\n\\ No newline at end of file\n"


def _range(start: int, end: int) -> str:
    """Return lines ``start`` to ``end`` as a hunk header counts them: from 1, an empty range after the line before."""
    length = end - start
    first = start + 1 if length else start
    return str(first) if length == 1 else f"{first},{length}"


_ESCAPES = {7: b"\\a", 8: b"\\b", 9: b"\\t", 10: b"\\n", 11: b"\\v", 12: b"\\f", 13: b"\\r", 34: b'\\"', 92: b"\\\\"}


def _name(name: str) -> bytes:
    """Return a file name as git writes it: quoted when a terminal would obey a part of it or git needs it, ended by a
    tab when it holds a space."""
    raw = os.fsencode(name)
    if visible(name) != name or any(byte in _ESCAPES for byte in raw):
        quoted = (
            _ESCAPES.get(byte) or (b"\\%03o" % byte if byte < 32 or byte >= 127 else bytes([byte])) for byte in raw
        )
        return b'"' + b"".join(quoted) + b'"'
    return raw + b"\t" if b" " in raw else raw
