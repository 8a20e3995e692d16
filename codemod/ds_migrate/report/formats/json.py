"""The report as JSON, schema 1 (``schema.json`` beside this file): fields may be added, never changed."""

from __future__ import annotations

import json
from typing import Any

from ds_migrate.findings import FileResult, Finding, Report, TrialResult
from ds_migrate.report.summary import Summary

SCHEMA = 1


def to_json(report: Report) -> str:
    """Return one JSON document in ASCII, so that any terminal, pipe and file name can hold it."""
    return json.dumps(document(report), indent=2)


def document(report: Report) -> dict[str, Any]:
    summary = Summary.of(report)
    return {
        "schema": SCHEMA,
        "summary": {
            "files": summary.files,
            "trials": summary.trials,
            "converted": summary.converted,
            "blocked": summary.blocked,
            "review": summary.review,
            "unsupported": summary.unsupported,
            "errors": summary.errors,
            "skipped": summary.skipped,
            "ignored": summary.ignored,
        },
        "files": [_file(file) for file in report.files],
    }


def _file(file: FileResult) -> dict[str, Any]:
    return {
        "path": str(file.path),
        "kind": file.kind.value,
        "status": file.status.value,
        "trials": [_trial(trial) for trial in file.trials],
        "findings": [_finding(finding) for finding in file.findings],
    }


def _trial(trial: TrialResult) -> dict[str, Any]:
    return {"name": trial.name, "line": trial.line, "status": trial.status.value}


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "severity": finding.severity.value,
        "line": finding.line,
        "column": finding.column,
        "cell": finding.cell,
        "trial": finding.trial,
        "message": finding.message,
        "help": finding.help,
        "fix": finding.fix,
    }
