"""``# TODO(ds-migrate DSM...)`` comments that an earlier conversion left for a person, and nobody has dealt with."""

from __future__ import annotations

import io
import tokenize
from collections.abc import Iterator

from ds_migrate.files.discovery import Source
from ds_migrate.findings import Finding, Report, Severity
from ds_migrate.project.control_comments import result_of
from ds_migrate.project.module_index import MARKER
from ds_migrate.report.summary import MARKER_CODE

_NOT_PYTHON = (".ipynb", ".yaml", ".yml")
_HELP = "do what it says, then delete the comment"


def add_markers(report: Report, sources: list[Source]) -> None:
    """Report each leftover marker, with the findings of its file."""
    for source in sources:
        if source.data is None or not MARKER.search(source.data):
            continue
        found = list(_markers(source))
        if found:
            result_of(report, source).findings.extend(found)


def _markers(source: Source) -> Iterator[Finding]:
    assert source.data is not None
    comments = _comment_lines(source.data) if source.path.suffix not in _NOT_PYTHON else None
    for number, line in enumerate(source.data.split(b"\n"), 1):
        match = MARKER.search(line)
        if match and (comments is None or number in comments):
            text = line[match.start() :].decode("utf-8", "replace").strip()
            message = f"a marker is left: {text}"
            yield Finding(MARKER_CODE, Severity.REVIEW, number, message, match.start() + 1, help=_HELP)


def _comment_lines(data: bytes) -> set[int] | None:
    """Lines with a comment, so that a marker quoted in a string is none; None when the file does not tokenize."""
    try:
        tokens = list(tokenize.tokenize(io.BytesIO(data).readline))
    except (SyntaxError, tokenize.TokenError, ValueError):
        return None
    return {token.start[0] for token in tokens if token.type == tokenize.COMMENT}
