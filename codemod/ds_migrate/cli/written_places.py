"""Positions in the files as written: after ``--write`` a line and a column are those that an editor shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from difflib import SequenceMatcher

from ds_migrate.files.notebook import Notebook
from ds_migrate.findings import FileKind, FileResult
from ds_migrate.report.escaping import encoding_of
from ds_migrate.report.word_diff import paired_lines

Place = tuple[int, int]  # line and column, from 1; 0 is unknown
_SLOW = 1000  # lines; above it, difflib's shortcut for repeated lines keeps its time linear


def place_as_written(files: Iterable[FileResult]) -> None:
    """Give the findings and trials of files that were written their place in the new content."""
    for file in files:
        if file.to_write and file.before is not None:
            _place_file(file, file.before, file.after or b"")


def _place_file(file: FileResult, before: bytes, after: bytes) -> None:
    if file.kind is FileKind.NOTEBOOK:
        old_cells, new_cells = ({c.index + 1: c.source for c in Notebook.parse(d).cells} for d in (before, after))
        moves = {cell: written_place(source, new_cells[cell]) for cell, source in old_cells.items()}
        file.findings = [
            replace(f, line=place[0], column=place[1])
            for f in file.findings
            for place in [moves[f.cell]((f.line, f.column)) if f.cell in moves else (f.line, f.column)]
        ]
        return  # the line of a trial in a notebook is one of no cell
    move = written_place(*(data.decode(encoding_of(file, data), "replace") for data in (before, after)))
    placed = [(f, move((f.line, f.column))) for f in file.findings]
    file.findings = [replace(f, line=line, column=column) for f, (line, column) in placed]
    file.trials = [replace(trial, line=move((trial.line, 0))[0]) for trial in file.trials]


def written_place(before: str, after: str) -> Callable[[Place], Place]:
    """Return a function from a place in one version of a text to the same place in the other.

    A line that is gone has the place of what is there instead, without a column.
    """
    old, new = before.split("\n"), after.split("\n")
    matcher = SequenceMatcher(None, old, new, autojunk=max(len(old), len(new)) > _SLOW)
    codes = matcher.get_opcodes()

    def move(place: Place) -> Place:
        line, column = place
        if not 1 <= line <= len(old):
            return place
        tag, first, last, new_first, new_last = next(code for code in codes if code[1] < line <= code[2])
        if tag == "equal":
            return line - first + new_first, column
        for pair in paired_lines(old[first:last], new[new_first:new_last]):
            if first + pair.old == line - 1:
                written = new_first + pair.new
                return written + 1, _moved_column(old[line - 1], new[written], column)
        return min(new_first + 1, len(new)), 0

    return move


def _moved_column(old: Sequence[str], new: Sequence[str], column: int) -> int:
    for _, first, last, new_first, new_last in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if first < column <= last:
            return min(new_first + column - first, max(new_last, new_first + 1))
    return 0
