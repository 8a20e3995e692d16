"""The report as GitHub Actions annotations: one workflow command a finding, shown beside the line in a pull request."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ds_migrate.findings import FileResult, Report, Severity
from ds_migrate.report import pending
from ds_migrate.report.escaping import visible
from ds_migrate.report.plain_text import ORDER, sorted_findings
from ds_migrate.report.summary import Mode

_LEVELS = {Severity.ERROR: "error", Severity.BLOCKED: "error", Severity.REVIEW: "warning"}


def to_github(report: Report, mode: Mode) -> Iterator[str]:
    """Yield what waits or went wrong, and what to review; what was converted without a doubt is not annotated."""
    for work in pending.waiting(report, mode):
        yield _annotation("warning", work.file, work.line, 0, pending.CODE, work.message)
    for file in report.files:
        for finding in sorted_findings(file, ORDER[:-1]):
            message = finding.message + (f"\nhelp: {finding.help}" if finding.help else "")
            title = finding.code if finding.cell is None else f"{finding.code} in cell {finding.cell}"
            line = finding.line if finding.cell is None else 0  # lines of a cell are not lines of the file
            yield _annotation(_LEVELS[finding.severity], file, line, finding.column, title, message)


def _annotation(level: str, file: FileResult, line: int, column: int, title: str, message: str) -> str:
    properties = {"file": _relative(file), "title": title}
    if line:
        properties["line"] = str(line)
        if column:
            properties["col"] = str(column)
    listed = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::{level} {listed}::{_data(message)}"


def _relative(file: FileResult) -> str:
    """Return the path relative to the checkout, as GitHub has it."""
    real = os.path.realpath(file.path)
    path = os.path.relpath(real, os.path.realpath(os.environ.get("GITHUB_WORKSPACE") or "."))
    return os.fsencode(path).decode("utf-8", "backslashreplace").replace(os.sep, "/")


def _data(text: str) -> str:
    """Escape as GitHub asks for, and what else a terminal or a browser would obey."""
    text = "\n".join(map(visible, text.replace("\r\n", "\n").split("\n")))
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
