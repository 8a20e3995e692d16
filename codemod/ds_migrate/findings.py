"""The results of a run: findings, files, trials, and the report that holds them.

Plain data, imported by every stage, importing none of them (nor libcst, nor rich).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TypeVar

Item = TypeVar("Item")
ENCODING_HELP = "save it as UTF-8, or name its encoding in line 1: # -*- coding: latin-1 -*-"


class Severity(str, Enum):
    """The outcome for one place in the source."""

    CONVERTED = "converted"
    REVIEW = "review"  # converted, and something changed that a person should know
    BLOCKED = "blocked"  # the trial is left exactly as it was
    ERROR = "error"  # the file could not be read, parsed or written


class TrialStatus(str, Enum):
    CONVERTED = "converted"
    BLOCKED = "blocked"
    ALREADY_DEEPSPEED = "already-deepspeed"
    UNSUPPORTED_API = "unsupported-api"
    SKIPPED = "skipped"  # a comment asks to leave it
    DECLINED = "declined"  # the user declined it when asked


class FileKind(str, Enum):
    PYTHON = "python"
    NOTEBOOK = "notebook"
    EXPERIMENT = "experiment"
    DS_CONFIG = "ds_config"


class FileStatus(str, Enum):
    CHANGED = "changed"
    CREATED = "created"
    UNCHANGED = "unchanged"
    BLOCKED = "blocked"
    ERROR = "error"


@dataclass(frozen=True)
class Finding:
    """One thing to know about one place: ``path:line:column CODE message``.

    ``line`` counts from 1, ``column`` from 1 (0 when the finding is about the whole line). ``cell`` counts notebook
    cells from 1. ``help`` is the smallest change that would unblock, ``fix`` what was written instead.
    """

    code: str
    severity: Severity
    line: int
    message: str
    column: int = 0
    cell: int | None = None
    trial: str | None = None
    help: str | None = None
    fix: str | None = None


@dataclass(frozen=True)
class TrialResult:
    """A trial, or with ``is_loop`` a plain training loop."""

    name: str
    line: int
    status: TrialStatus
    is_loop: bool = False


@dataclass
class FileResult:
    """One file of the run. ``before`` is None for a file to create, ``after`` for one that stays as it is.

    ``units`` names the conversions that this change is a part of (any strings): files that share one are written
    together or not at all. A file that names none is written together with all files of the run.
    """

    path: Path
    kind: FileKind = FileKind.PYTHON
    status: FileStatus = FileStatus.UNCHANGED
    before: bytes | None = None
    after: bytes | None = None
    trials: list[TrialResult] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    units: frozenset[str] = frozenset()

    @property
    def to_write(self) -> bool:
        return self.after is not None and self.after != self.before


def blocked_loop(code: str, path: Path, node: ast.stmt | ast.expr, message: str, advice: str) -> FileResult:
    """Return the result of a file whose one plain loop stays, for a reason that a node gives."""
    loop, line, column = f"the loop of {path.stem}", node.lineno, node.col_offset + 1
    finding = Finding(code, Severity.BLOCKED, line, message, column, trial=loop, help=advice)
    trial = TrialResult(loop, line, TrialStatus.BLOCKED, is_loop=True)
    return FileResult(path, status=FileStatus.BLOCKED, trials=[trial], findings=[finding])


@dataclass
class Report:
    """Everything one run found. ``searched`` is how many files were looked at, in ``files`` only those with news;
    ``accepted`` are the findings that a comment in the source or an option accepts, with the real paths of their
    files."""

    files: list[FileResult] = field(default_factory=list)
    searched: int = 0
    accepted: list[tuple[Path, Finding]] = field(default_factory=list)
    is_plain: bool = False

    def findings(self, *severities: Severity) -> Iterator[tuple[FileResult, Finding]]:
        """Findings with their file, of the given severities (all when none is given), in file order."""
        for file in self.files:
            for finding in file.findings:
                if not severities or finding.severity in severities:
                    yield file, finding

    def trials(self, *statuses: TrialStatus) -> Iterator[tuple[FileResult, TrialResult]]:
        """Trials with their file, of the given statuses (all when none is given)."""
        for file in self.files:
            for trial in file.trials:
                if not statuses or trial.status in statuses:
                    yield file, trial

    def conversions(self) -> list[list[FileResult]]:
        """Return the files with changes, grouped by conversion."""
        return group_by_unit([file for file in self.files if file.to_write], lambda file: file)


def group_by_unit(items: Sequence[Item], file_of: Callable[[Item], FileResult]) -> list[list[Item]]:
    """Group items by the conversions that their files share: these are written and decided upon together.

    A file that names no conversion joins all others.
    """
    if any(not file_of(item).units for item in items):
        return [list(items)]
    groups: list[tuple[set[str], list[Item]]] = []
    for item in items:
        names, members = set(file_of(item).units), [item]
        for group in [group for group in groups if group[0] & names]:
            groups.remove(group)
            names |= group[0]
            members = group[1] + members
        groups.append((names, members))
    return [members for _, members in groups]
