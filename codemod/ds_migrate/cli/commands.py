"""One run: files to a report, the report to disk where it is to be written, and the exit code."""

from __future__ import annotations

import gc
import os
import sys

from ds_migrate.cli.streams import here, relative, say

TYPE_CHECKING = False  # typing's own name for it costs 2 ms of every run
if TYPE_CHECKING:
    from collections.abc import Callable

    from ds_migrate.cli.arguments import Arguments
    from ds_migrate.files.discovery import Source
    from ds_migrate.findings import Report
    from ds_migrate.options import Options


def selection(arguments: Arguments) -> Callable[[str], bool]:
    """Whether a file (absolute, links resolved) belongs to the run."""
    if not arguments.patterns:
        return lambda _name: True
    from ds_migrate.files.patterns import Selection

    parts = [
        Selection(os.path.realpath(base), include or (), exclude or ()) for base, include, exclude in arguments.patterns
    ]
    return lambda name: all(part(name) for part in parts)


def concerned(sources: list[Source]) -> bool:
    """Whether anything that could be read may hold a trial, or may follow one and was named alone."""
    from ds_migrate.files.discovery import CONFIG_SUFFIXES

    readable = [source for source in sources if source.error is None]
    python = [source for source in readable if not source.name.endswith(CONFIG_SUFFIXES)]
    return any(source.data is not None for source in python or readable)


def migrate_sources(sources: list[Source], arguments: Arguments) -> int:
    """Convert, ask and write as the command line says, show what came of it; the exit code."""
    from contextlib import suppress

    from ds_migrate.cli.output import present
    from ds_migrate.report.summary import Command, Mode, exit_code

    if arguments.interactive and not _asking():
        say("ds-migrate: --interactive asks on a terminal, and this is none; --write applies everything")
        return 2
    mode = Mode.WRITE if arguments.write or arguments.interactive else Mode.CHECK if arguments.check else Mode.PREVIEW
    report = report_of(sources, arguments)
    if mode is Mode.WRITE:
        _write(report, arguments)
    code = exit_code(report, mode)
    with suppress(BrokenPipeError):  # the reader has seen enough; what was done is done
        present(report, mode, Command(arguments.paths, arguments.repeated, is_versioned), arguments)
    return code


def options_of(arguments: Arguments) -> Options:
    """How to convert, as the command line says."""
    from ds_migrate.options import Options

    return Options(
        arguments.target,
        arguments.zero,
        arguments.precision,
        arguments.offload or "none",
        arguments.optimizer_in_config or False,
    )


def report_of(sources: list[Source], arguments: Arguments) -> Report:
    """What the engine makes of the sources that could be read, and the news of the others."""
    gc.disable()  # a parsed file is let go without the collector, which would only visit all its nodes time and again
    try:
        return _report_of(sources, arguments)
    finally:
        gc.enable()


def _report_of(sources: list[Source], arguments: Arguments) -> Report:
    from ds_migrate.findings import FileResult, FileStatus, Finding, Report, Severity
    from ds_migrate.rules.codes import Code

    report = Report()
    if concerned(sources):
        from ds_migrate.pipeline import migrate

        readable = [source for source in sources if source.error is None]
        options, jobs = options_of(arguments), arguments.jobs
        shown = sys.stderr.isatty()
        report = _with_progress(readable, options, jobs) if shown else migrate(readable, options, jobs=jobs)
    report.searched = len(sources)
    for source in sources:
        if source.error is not None:
            finding = Finding(Code.UNREADABLE_SOURCE, Severity.ERROR, 0, f"cannot be read: {source.error}")
            report.files.append(FileResult(source.path, status=FileStatus.ERROR, findings=[finding]))
    return report


def _with_progress(sources: list[Source], options: Options, jobs: int | None) -> Report:
    from ds_migrate.cli.progress import Progress
    from ds_migrate.pipeline import migrate

    progress = Progress(sys.stderr)
    try:
        return migrate(sources, options, progress, jobs)
    finally:
        progress.clear()


def _asking() -> bool:
    from ds_migrate.cli.interactive import on_terminal

    return on_terminal()


def _write(report: Report, arguments: Arguments) -> None:
    from ds_migrate.files import writer
    from ds_migrate.report.escaping import visible

    if not any(file.to_write for file in report.files):
        return
    at_risk = [visible(relative(path)) for path in writer.uncommitted(report)]
    if at_risk:
        files = "a file that has" if len(at_risk) == 1 else f"{len(at_risk)} files that have"
        more = ", ..." if len(at_risk) > 3 else ""
        say(f"note: writing to {files} changes not committed to git: {', '.join(at_risk[:3])}{more}")
    if arguments.interactive:
        _decide(report, arguments)
    writer.apply(report, here())


def _decide(report: Report, arguments: Arguments) -> None:
    from ds_migrate.cli.interactive import Dialogue, ask, decide, open_editor
    from ds_migrate.report.summary import Mode
    from ds_migrate.report.terminal import Screen, terminal_console

    screen = Screen(terminal_console(sys.stdout, arguments.color), Mode.PREVIEW, arguments.view)
    decide(report, Dialogue(screen.conversion, ask, print, open_editor))


def is_versioned(folder: str) -> bool:
    """Return whether a folder is in a work tree of git."""
    from ds_migrate.files import git

    return git.work_tree(folder) is not None
