"""The report as SARIF 2.1.0, for code scanning and editors. A conversion is one result with one fix: all of its files.

Paths are relative to ``SRCROOT``, the folder of the run. Lines and columns count from 1, columns in characters.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ds_migrate import __version__
from ds_migrate.findings import FileResult, Finding, Report, Severity
from ds_migrate.report import pending
from ds_migrate.report.escaping import encoding_of
from ds_migrate.report.patch import Change, changes, split_lines
from ds_migrate.report.plain_text import ORDER, sorted_findings
from ds_migrate.report.summary import EXIT_FAILED, Mode, exit_code

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {Severity.ERROR: "error", Severity.BLOCKED: "error", Severity.REVIEW: "warning"}
_BASE = "SRCROOT"


def to_sarif(report: Report, mode: Mode) -> str:
    """Return one SARIF log in ASCII."""
    return json.dumps(log(report, mode), indent=2)


def log(report: Report, mode: Mode) -> dict[str, Any]:
    here = Path(os.path.realpath(Path.cwd()))
    results = [_work(work, here) for work in pending.waiting(report, mode)]
    results += [
        _result(finding.code, _LEVELS[finding.severity], _text(finding), [_location(file, finding, here)])
        for file in report.files
        for finding in sorted_findings(file, ORDER[:-1])
    ]
    codes = sorted({result["ruleId"] for result in results})
    for result in results:
        result["ruleIndex"] = codes.index(result["ruleId"])
    driver = {"name": "ds-migrate", "version": __version__, "semanticVersion": __version__, "rules": _rules(codes)}
    run = {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": exit_code(report, mode) != EXIT_FAILED}],
        "originalUriBaseIds": {_BASE: {"uri": here.as_uri() + "/"}},
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rules(codes: Sequence[str]) -> list[dict[str, Any]]:
    if not codes:
        return []
    from ds_migrate.rules.codes import Code
    from ds_migrate.rules.pages import page_of

    return [
        {
            "id": code.value,
            "name": "".join(word.capitalize() for word in code.slug.split("-")),
            "shortDescription": {"text": code.summary},
            "fullDescription": {"text": code.summary},
            "help": {"text": page_of(code).text, "markdown": page_of(code).markdown},
        }
        for code in Code
        if code in codes
    ]


def _result(code: str, level: str, text: str, locations: list[dict[str, Any]]) -> dict[str, Any]:
    return {"ruleId": code, "level": level, "message": {"text": text}, "locations": locations}


def _text(finding: Finding) -> str:
    return finding.message + (f"\nhelp: {finding.help}" if finding.help else "")


def _work(work: pending.Waiting, here: Path) -> dict[str, Any]:
    """Return a conversion that waits, with what it does where, and the whole of it as a fix."""
    result = _result(pending.CODE, "warning", work.message, [_at(work.file, work.line, 0, here)])
    done = [(file, f) for file in work.files for f in file.findings if f.severity is Severity.CONVERTED and file.before]
    if done:
        result["relatedLocations"] = [
            {**_location(file, finding, here), "message": {"text": f"{finding.code} {finding.message}"}}
            for file, finding in done
        ]
    changed = [_artifact_change(file, here) for file in work.files]
    result["fixes"] = [{"description": {"text": work.message}, "artifactChanges": changed}]
    return result


def _location(file: FileResult, finding: Finding, here: Path) -> dict[str, Any]:
    if finding.cell is not None:  # lines of a cell are not lines of the file
        place = {"fullyQualifiedName": f"cell {finding.cell}, line {finding.line}"}
        return {**_at(file, 0, 0, here), "logicalLocations": [place]}
    return _at(file, finding.line, finding.column, here)


def _at(file: FileResult, line: int, column: int, here: Path) -> dict[str, Any]:
    physical: dict[str, Any] = {"artifactLocation": _artifact(file, here)}
    if line:
        physical["region"] = {"startLine": line, **({"startColumn": column} if column else {})}
    return {"physicalLocation": physical}


def _artifact(file: FileResult, here: Path) -> dict[str, str]:
    real = Path(os.path.realpath(file.path))
    if not real.is_relative_to(here):
        return {"uri": real.as_uri()}
    return {"uri": quote(os.fsencode(real.relative_to(here).as_posix())), "uriBaseId": _BASE}


def _artifact_change(file: FileResult, here: Path) -> dict[str, Any]:
    old, new = split_lines(file.before or b""), split_lines(file.after or b"")
    replacements = [_replacement(file, change, old, new) for change in changes(old, new)]
    return {"artifactLocation": _artifact(file, here), "replacements": replacements}


def _replacement(file: FileResult, change: Change, old: Sequence[bytes], new: Sequence[bytes]) -> dict[str, Any]:
    """Return the replacement of whole lines by whole lines; a file to create is inserted into an empty one."""
    encoding = encoding_of(file, file.before or b"")
    end_line, end_column = change.old_end + 1, 1
    if change.old_end == len(old) and old and not old[-1].endswith(b"\n"):
        end_line, end_column = len(old), len(old[-1].decode(encoding, "replace")) + 1
    start = (change.old + 1, 1) if change.old < len(old) else (end_line, end_column)
    region = {"startLine": start[0], "startColumn": start[1], "endLine": end_line, "endColumn": end_column}
    content = b"".join(new[change.new : change.new_end])
    return {"deletedRegion": region, "insertedContent": _content(content, encoding)}


def _content(data: bytes, encoding: str) -> dict[str, str]:
    try:
        return {"text": data.decode(encoding)}
    except UnicodeDecodeError:
        return {"binary": base64.b64encode(data).decode("ascii")}
