"""Lay out a changed file for a reader: hunks, the findings that explain each change, lines side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from ds_migrate.findings import FileKind, FileResult, Finding, Severity
from ds_migrate.report.patch import Change, hunks
from ds_migrate.report.word_diff import Pair
from ds_migrate.rules.codes import Code


@dataclass
class Block:
    """A change, or equal lines around one, and the findings that explain it."""

    change: Change
    notes: list[Finding] = field(default_factory=list)


def laid_out(file: FileResult, before: Sequence[bytes], after: Sequence[bytes]) -> list[list[Block]]:
    """Return the hunks of a file, each finding with the change that it explains (``unplaced`` has the others)."""
    found = [[Block(change) for change in changes] for changes in hunks(before, after)]
    for finding in _explaining(file):
        if file.before is None:  # all of it is one change
            block = found[0][0] if found else None
        else:  # a finding of a config is shown at its section, what it explains may be far down in it
            block = _explained(finding.line - 1, found, anywhere=file.kind is FileKind.EXPERIMENT)
        if block is not None:
            block.notes.append(finding)
    return found


def unplaced(file: FileResult, laid: Sequence[Sequence[Block]]) -> list[Finding]:
    """Return findings of conversions that belong to no change."""
    placed = {id(finding) for blocks in laid for block in blocks for finding in block.notes}
    return [finding for finding in file.findings if id(finding) not in placed]


def side_by_side(change: Change, pairs: Sequence[Pair]) -> Iterator[tuple[int | None, int | None, Pair | None]]:
    """Yield rows of (old line, new line, how they differ), None where a side has no line."""
    if not change.changed:
        for offset in range(change.old_end - change.old):
            yield change.old + offset, change.new + offset, None
        return
    old, new = change.old, change.new
    for pair in pairs:
        yield from _beside(range(old, change.old + pair.old), range(new, change.new + pair.new))
        old, new = change.old + pair.old, change.new + pair.new
        yield old, new, pair
        old, new = old + 1, new + 1
    yield from _beside(range(old, change.old_end), range(new, change.new_end))


def _beside(old: range, new: range) -> Iterator[tuple[int | None, int | None, None]]:
    for left, right in zip_longest(old, new):
        yield left, right, None


def _explaining(file: FileResult) -> list[Finding]:
    """Return what was converted, in order. A notebook's lines are those of its cells, which its text does not show."""
    shown = [f for f in file.findings if f.code != Code.MEMORY]  # which the summary shows, on demand
    chosen = [f for f in shown if f.severity in (Severity.CONVERTED, Severity.REVIEW) and f.cell is None]
    return sorted(chosen, key=lambda f: (f.line, f.column, f.code))


def _explained(line: int, found: Sequence[Sequence[Block]], anywhere: bool) -> Block | None:
    """Return the change at a line (from 0) of the old file, or else the next one: of the hunk that the line is in, or
    ``anywhere`` below it."""
    for blocks in found:
        last = _ends(blocks[-1].change)
        if line < last and (anywhere or line >= blocks[0].change.old):
            changed = [block for block in blocks if block.change.changed]
            return next((block for block in changed if _ends(block.change) > line), changed[-1])
    return None


def _ends(change: Change) -> int:
    """Return the first old line after the change; added lines explain the one that they come before."""
    return max(change.old_end, change.old + 1)
