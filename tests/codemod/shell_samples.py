"""Reports and trees for the tests of the command line, the reports and the writing."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from ds_migrate.findings import (
    FileKind,
    FileResult,
    FileStatus,
    Finding,
    Report,
    Severity,
    TrialResult,
    TrialStatus,
)

TRIAL = b"""\
from determined.pytorch import PyTorchTrial


class Trial(PyTorchTrial):
    pass
"""


def git(folder: Path, *arguments: str) -> str:
    """Run git there, without the settings of whoever runs the tests; its output."""
    settings = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    who = ("-c", "user.name=tester", "-c", "user.email=tester@example.org", "-c", "init.defaultBranch=main")
    done = subprocess.run(
        ["git", *who, *arguments], cwd=folder, env={**os.environ, **settings}, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def changed(path: Path, before: bytes, after: bytes, *findings: Finding, units: str = "") -> FileResult:
    """A file that is there as ``before`` and is to become ``after``."""
    return FileResult(
        path,
        status=FileStatus.CHANGED,
        before=before,
        after=after,
        trials=[TrialResult("Trial", 4, TrialStatus.CONVERTED)],
        findings=list(findings),
        units=frozenset(units.split()),
    )


def created(path: Path, after: bytes, units: str = "") -> FileResult:
    return FileResult(path, FileKind.DS_CONFIG, FileStatus.CREATED, after=after, units=frozenset(units.split()))


def finding(severity: Severity, message: str = "said", **more: object) -> Finding:
    return Finding(**{"code": "DSM204", "severity": severity, "line": 3, "column": 5, "message": message, **more})  # type: ignore[arg-type]


def report_of(*files: FileResult, searched: int | None = None) -> Report:
    return Report(list(files), len(files) if searched is None else searched)
