"""The results of the programs of a project, which may share helper files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ds_migrate.findings import FileResult, FileStatus, Finding, Severity
from ds_migrate.rules.codes import Code


@dataclass(frozen=True)
class ProgramResults:
    """The results of a program.

    Attributes:
        files: of each file.
        skips: the comments that skip a loop.
        guarded: the files in which only output changes, so that rank 0 alone makes it.
        left: the files that loops which stay as they are use.
    """

    files: list[FileResult]
    skips: set[tuple[Path, int]] = field(default_factory=set)
    guarded: set[Path] = field(default_factory=set)
    left: set[Path] = field(default_factory=set)


def differ(program: ProgramResults, written: Mapping[Path, bytes]) -> bool:
    """Return whether a program changes a file otherwise than an earlier one: it then changes that one's text."""
    outputs = ((result.path, result.after) for result in program.files if result.after is not None)
    return any(path in written and written[path] != after for path, after in outputs)


def shared_results(programs: Sequence[ProgramResults]) -> Iterator[FileResult]:
    """Yield the results of programs that may share helper files: each one has the changes of earlier ones in its text.

    A file of which only the output changes stays as it is where a loop that is not converted uses the file too.
    """
    left = {path for program in programs for path in program.left}
    changed = {
        result.path for program in programs for result in program.files
        if result.after is not None and result.path not in program.guarded
    }  # fmt: skip
    known: dict[Path, list[Finding]] = {}
    for program in programs:
        for result in program.files:
            is_helper = result.after is not None and not result.trials
            if is_helper and result.path in program.guarded and result.path in left - changed:
                result.after, result.status = None, FileStatus.UNCHANGED
                result.findings = [_shared(result.findings)] if result.findings else []
            if is_helper:
                reported = known.setdefault(result.path, [])
                result.findings = [finding for finding in result.findings if finding not in reported]
                reported += result.findings
            yield result


def _shared(findings: Sequence[Finding]) -> Finding:
    first = findings[0]
    message = "every rank prints or writes here: this file stays as it is, as a loop that was not converted uses it too"
    advice = "put what should run once under if is_main_rank():"
    return Finding(Code.PLAIN_RANK_ZERO, Severity.REVIEW, first.line, message, first.column, help=advice)
