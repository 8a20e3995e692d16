"""Findings and summary as plain lines, for logs, pipes and pre-commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ds_migrate.findings import FileResult, FileStatus, Finding, Report, Severity, TrialStatus
from ds_migrate.report.escaping import place, visible
from ds_migrate.report.summary import MEMORY_CODE, Command, Mode, memory_lines, next_steps, sentences

ORDER = (Severity.ERROR, Severity.BLOCKED, Severity.REVIEW, Severity.CONVERTED)


def finding_lines(report: Report, severities: Sequence[Severity] = ORDER) -> Iterator[str]:
    """Yield ``path:line:column CODE severity: message`` and its help, file by file, the most serious first."""
    for file in report.files:
        for finding in sorted_findings(file, severities):
            yield f"{place(file, finding)} {finding.code} {finding.severity.value}: {visible(finding.message)}"
            if finding.help:
                yield f"    help: {visible(finding.help)}"


def waiting_lines(report: Report) -> Iterator[str]:
    """Yield what ``--check`` has against a file that could be converted right now."""
    for file in report.files:
        waiting = [trial for trial in file.trials if trial.status is TrialStatus.CONVERTED]
        for trial in waiting:
            noun = "plain training loop" if trial.is_loop else "PyTorchTrial"
            where, name = f"{visible(str(file.path))}:{trial.line}", visible(trial.name)
            yield f"{where} {name} is a {noun} that --write converts"
        if file.to_write and not waiting:
            verb = "would be created" if file.before is None else "would change with its trial"
            yield f"{visible(str(file.path))} {verb}"


def written_lines(report: Report) -> Iterator[str]:
    """Yield the files that ``--write`` wrote."""
    for file in report.files:
        if file.to_write and file.status in (FileStatus.CHANGED, FileStatus.CREATED):
            yield f"{file.status.value} {visible(str(file.path))}"


def closing_lines(report: Report, mode: Mode, command: Command) -> Iterator[str]:
    """Yield the summary and the next command to type."""
    yield from sentences(report, mode)
    if command.shows_memory:
        yield from memory_lines(report)
    yield from step_lines(next_steps(report, mode, command))


def step_lines(steps: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield commands in one column, each with its reason."""
    listed = list(steps)
    width = max((len(why) for why, _ in listed), default=0)
    for why, line in listed:
        yield f"    {why:<{width}}  {line}"


def sorted_findings(file: FileResult, severities: Sequence[Severity]) -> list[Finding]:
    """Return the file's findings of the given severities, in their order, then by place."""
    # what the summary reports is shown there only
    chosen = [f for f in file.findings if f.severity in severities and f.code != MEMORY_CODE]
    return sorted(chosen, key=lambda f: (severities.index(f.severity), f.cell or 0, f.line, f.column, f.code))
