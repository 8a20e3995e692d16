"""The source line of a finding, as compilers show it: with what the finding is about underlined."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

from ds_migrate.findings import FileKind, FileResult, Finding, Severity
from ds_migrate.report.escaping import visible
from ds_migrate.report.highlighting import SourceText

_MARKED = re.compile(r"[^\W\d]\w*(?:\.\w+)*|\S")
_CUT = "…"


@dataclass(frozen=True)
class Excerpt:
    """A line without its indentation, safe to show, in three parts; ``marked`` is what the finding is about."""

    line: int
    before: str
    marked: str
    after: str

    @property
    def underline(self) -> str:
        """Return the row below the line."""
        return " " * cell_len(self.before) + "^" * cell_len(self.marked)


def excerpt(file: FileResult, finding: Finding, width: int) -> Excerpt | None:
    """Return the line of a finding that a person has to act on before anything is converted; else None.

    Args:
        file: where it is.
        finding: findings without a column are about the whole file or trial, and have no excerpt.
        width: cells that the line may take; of a longer one the part around the mark is shown.
    """
    if finding.severity not in (Severity.BLOCKED, Severity.ERROR) or not finding.column:
        return None
    if file.before is None or file.kind is FileKind.NOTEBOOK:
        return None
    source = SourceText(file, file.before)
    if finding.line > len(source.lines):
        return None
    text = source.text(finding.line - 1).replace("\t", " ")
    found = _MARKED.match(text, finding.column - 1)
    if found is None:
        return None
    start, end = found.span()
    before, marked, after = visible(text[:start].lstrip()), visible(text[start:end]), visible(text[end:].rstrip())
    room = max(width - cell_len(marked), 0)
    if cell_len(before) > room // 2 and cell_len(before + after) > room:
        before = _CUT + set_cell_size(before[::-1], max(room // 2 - 1, 0))[::-1]
    if cell_len(before + after) > room:
        after = set_cell_size(after, max(room - cell_len(before) - 1, 0)) + _CUT
    return Excerpt(finding.line, before, marked, after)
