"""The commands of the command line: convert paths or standard input, undo, explain. Each returns an exit code."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ds_migrate.cli.arguments import Arguments
from ds_migrate.cli.output import here, is_on_terminal, present, print_bytes, print_lines, relative, warn
from ds_migrate.cli.parser import make_parser
from ds_migrate.cli.progress import Progress
from ds_migrate.files import atomic, git
from ds_migrate.files.discovery import CONFIG_SUFFIXES, JOURNAL_FOLDER, Source, discover, project_root
from ds_migrate.findings import FileResult, FileStatus, Finding, Report, Severity
from ds_migrate.options import Options
from ds_migrate.project.named_files import keep_concerned
from ds_migrate.report import plain_text
from ds_migrate.report.counts import nothing_found
from ds_migrate.report.escaping import visible
from ds_migrate.report.summary import Command, Mode, exit_code
from ds_migrate.rules.codes import Code

if TYPE_CHECKING:
    from ds_migrate.files.journal import Entry

# -- conversion -------------------------------------------------------------------------------------------------------


def convert_paths(arguments: Arguments) -> int:
    """Convert files and folders."""
    is_chosen = _selection(arguments)
    sources = _discover(arguments, is_chosen)
    half_written = _half_written(sources, arguments)
    if half_written and (arguments.write or arguments.interactive):
        if not _recovered(half_written):
            return 2
        half_written, sources = [], _discover(arguments, is_chosen)
    for path in arguments.paths if arguments.patterns else ():
        if Path(path).is_file() and not is_chosen(os.path.realpath(path)):
            warn(f"note: {path} is left out by --include, --exclude or [tool.ds-migrate] in pyproject.toml")
    if arguments.check and not sources and not arguments.patterns:
        # A wrong folder must not pass a CI.
        warn(f"ds-migrate: no Python file in {', '.join(map(visible, arguments.paths))}: nothing was checked")
        return 2
    is_concerned = arguments.plain or _concerned(sources)
    if arguments.format == "text" and not is_concerned and all(source.error is None for source in sources):
        sentence = nothing_found(len(sources), sum(source.has_loop for source in sources), arguments.paths)
        if is_on_terminal(arguments):
            print_lines([sentence])
        else:
            warn(sentence)
        return 0
    return _convert(sources, arguments, half_written)


def convert_stdin(arguments: Arguments) -> int:
    """Convert one file from standard input to standard output.

    As with formatters the source comes out whatever happens: unchanged when there is nothing to convert or the trial is
    blocked (exit code 1, the reason on stderr). ``--diff``, ``--check`` and ``--format`` print what they print for
    files.
    """
    data = sys.stdin.buffer.read()
    name = arguments.stdin_filename or "stdin.py"
    is_file = Path(name).is_file()  # another one has no folder with its base classes
    source = Source(name, os.path.realpath(name), str(project_root(name)), data, is_named_itself=is_file)
    if not arguments.plain:
        keep_concerned([source])
    sources = [source] if _selection(arguments)(source.real_name) else []
    if arguments.diff or arguments.check or arguments.format != "text":
        return _convert(sources, arguments)
    if source.data is None or not sources:
        print_bytes(data)
        return 0
    report = _report_of(sources, arguments)
    own = next((file for file in report.files if file.path == source.path), None)
    print_bytes(data if own is None or own.after is None else own.after)
    if own is not None:
        from ds_migrate.cli.written_places import place_as_written

        place_as_written([own])
    warn(*plain_text.finding_lines(report, plain_text.ORDER[:-1]))
    others = [str(file.path) for file in report.files if file is not own and file.to_write]
    if others:
        warn(f"note: the conversion needs {' and '.join(others)} too, which --write on the file itself makes")
    return exit_code(report, Mode.WRITE)


def options_of(arguments: Arguments) -> Options:
    """Return how to convert."""
    return Options(
        arguments.target, arguments.zero, arguments.precision, arguments.offload, arguments.optimizer_in_config,
        tuple(arguments.follow or ()), arguments.ignored, arguments.plain, arguments.config_style,
        arguments.runtime,
    )  # fmt: skip


def _discover(arguments: Arguments, is_chosen: Callable[[str], bool]) -> list[Source]:
    sources = discover(arguments.paths, is_chosen)
    if not arguments.plain:
        keep_concerned(sources)
    return sources


def _half_written(sources: Sequence[Source], arguments: Arguments) -> list[Entry]:
    """Return the runs that were ended while they wrote files of this one."""
    paths = {Path(os.path.realpath(path)) for path in arguments.paths}
    paths |= {source.real.parent for source in sources if source.data is not None}
    places = {place for path in paths for place in (path, *path.parents)}
    if not any(os.path.lexists(place / JOURNAL_FOLDER) for place in places):
        return []
    from ds_migrate.files import journal

    try:
        return journal.unfinished(paths)
    except journal.JournalError as error:
        warn(f"note: {visible(str(error))}")
        return []


def _recovered(half_written: Sequence[Entry]) -> bool:
    """Restore what these runs left half written and report it; False where such a file was changed since."""
    from ds_migrate.files import writer

    for entry in half_written:
        ended = f"{visible(entry.description)}, was ended while it wrote"
        try:
            writer.recover(entry)
        except writer.RefusedError as error:
            warn(
                f"ds-migrate: {ended}; {visible(str(error))}",
                f"    help: restore these files, or remove {visible(str(entry.file))} to keep them",
            )
            return False
        warn(f"note: {ended}: its files were restored first")
    return True


def _half_written_result(entry: Entry) -> FileResult:
    """Return the finding about a run that was ended while it wrote."""
    message = f"{entry.description}, was ended while it wrote: this file belongs to half a conversion"
    advice = "ds-migrate --write restores its files and converts them again, ds-migrate --undo restores them"
    finding = Finding(Code.NOT_WRITTEN, Severity.ERROR, 0, message, help=advice)
    return FileResult(Path(relative(entry.changes[0].path)), status=FileStatus.ERROR, findings=[finding])


def _convert(sources: Sequence[Source], arguments: Arguments, half_written: Sequence[Entry] = ()) -> int:
    """Convert, ask and write as the arguments ask for, and show the report."""
    if arguments.interactive and not (sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()):
        warn("ds-migrate: --interactive needs a terminal to ask on; --write applies everything")
        return 2
    mode = Mode.WRITE if arguments.write or arguments.interactive else Mode.CHECK if arguments.check else Mode.PREVIEW
    report = _report_of(sources, arguments)
    report.files += map(_half_written_result, half_written)
    if mode is Mode.WRITE:
        _write(report, arguments)
        atomic.sweep({source.real.parent for source in sources if source.data is not None})
    code = exit_code(report, mode)
    with suppress(BrokenPipeError):  # the reader has seen enough; what was done is done
        present(report, mode, Command(arguments.paths, arguments.repeated, is_versioned, arguments.memory), arguments)
    return code


def _selection(arguments: Arguments) -> Callable[[str], bool]:
    """Return a function that states whether a file (absolute, links resolved) belongs to the run."""
    if not arguments.patterns:
        return lambda _name: True
    from ds_migrate.files.patterns import Selection, slow_patterns

    for _, include, exclude in arguments.patterns:
        for pattern in slow_patterns([*(include or ()), *(exclude or ())]):
            warn(f"ds-migrate: the pattern {visible(pattern)} has too many wildcards: use three * in a name at most")
            raise SystemExit(2)
    parts = [
        Selection(os.path.realpath(base), include or (), exclude or ()) for base, include, exclude in arguments.patterns
    ]
    return lambda name: all(part(name) for part in parts)


def _concerned(sources: Sequence[Source]) -> bool:
    """Return whether anything that could be read may hold a trial, or may follow one and was named alone."""
    readable = [source for source in sources if source.error is None]
    python = [source for source in readable if not source.name.endswith(CONFIG_SUFFIXES)]
    return any(source.data is not None for source in python or readable)


def _is_unreadable(file: FileResult) -> bool:
    return any(finding.code is Code.UNREADABLE_SOURCE for finding in file.findings)


def _report_of(sources: Sequence[Source], arguments: Arguments) -> Report:
    """Return the report on the sources that could be read, with an error for each of the others."""
    report = _migrate(sources, arguments) if arguments.plain or _concerned(sources) else Report()
    report.is_plain = arguments.plain
    unread = sum(_is_unreadable(file) for file in report.files)
    report.searched = sum(source.error is None for source in sources) - unread
    for source in sources:
        if source.error is not None:
            finding = Finding(Code.UNREADABLE_SOURCE, Severity.ERROR, 0, source.error)
            report.files.append(FileResult(source.path, status=FileStatus.ERROR, findings=[finding]))
    return report


def _migrate(sources: Sequence[Source], arguments: Arguments) -> Report:
    from ds_migrate.pipeline import migrate

    readable = [source for source in sources if source.error is None]
    options, jobs = options_of(arguments), arguments.jobs
    gc.disable()  # parsed files are released without the collector, which would only visit all their nodes
    try:
        if not sys.stderr.isatty():
            return migrate(readable, options, jobs=jobs)
        progress = Progress(sys.stderr)
        try:
            return migrate(readable, options, progress, jobs)
        finally:
            progress.clear()
    finally:
        gc.freeze()  # the first collection would visit what is left of the files, for seconds
        gc.enable()


def _write(report: Report, arguments: Arguments) -> None:
    from ds_migrate.files import writer

    if not any(file.to_write for file in report.files):
        return
    at_risk = [visible(relative(path)) for path in writer.uncommitted(report)]
    if at_risk:
        files = "a file that has" if len(at_risk) == 1 else f"{len(at_risk)} files that have"
        more = ", ..." if len(at_risk) > 3 else ""
        warn(f"note: writing to {files} changes not committed to git: {', '.join(at_risk[:3])}{more}")
    if arguments.interactive:
        from ds_migrate.cli.interactive import Dialogue, ask, decide, open_editor
        from ds_migrate.report.terminal import Look, Screen, terminal_console

        look = Look(arguments.view, arguments.theme, is_complete=True)
        screen = Screen(terminal_console(sys.stdout, arguments.color), Mode.PREVIEW, look)
        decide(report, Dialogue(screen.conversion, ask, print, open_editor))
    writer.apply(report, here())
    if arguments.format != "html":  # its diffs show both versions, with the findings beside the old one
        from ds_migrate.cli.written_places import place_as_written

        place_as_written(report.files)


def is_versioned(folder: str) -> bool:
    """Return whether a folder is in a work tree of git."""
    return git.work_tree(folder) is not None


# -- other commands ---------------------------------------------------------------------------------------------------


def undo(paths: Sequence[str]) -> int:
    """Restore what the last run of the project wrote; with a path, what the last run wrote there."""
    from ds_migrate.files import journal, writer

    named = Path(os.path.realpath(paths[0])) if paths else here()
    if not os.path.lexists(named):
        warn(f"ds-migrate: {visible(paths[0])}: no such file or directory; nothing was undone")
        return 2
    try:
        entry = journal.last_entry_of(named) if paths else journal.last_entry(named)
        if entry is None:
            warn(f"ds-migrate: nothing to undo in {visible(str(named))}")
            return 2
        created = {change.path for change in entry.changes if change.before is None}
        description = visible(entry.description)
        restored = writer.undo(entry)
    except (journal.JournalError, writer.RefusedError) as error:
        warn(f"ds-migrate: {visible(str(error))}")
        return 2
    print_lines(f"{'removed' if path in created else 'restored'} {visible(relative(path))}" for path in restored)
    warn(f"Undone: {description}." if restored else f"Undone already, by hand: {description}.")
    return 0


def print_completion(shell: str) -> int:
    """Print a script that completes the command line in a shell; ``shtab`` makes it from the parser."""
    try:
        import shtab
    except ImportError:
        warn("ds-migrate: --completion needs shtab: pip install shtab")
        return 2
    parser = make_parser()
    for action in parser._actions:
        if action.dest == "explain":
            action.choices = [code.value for code in Code]
        elif action.dest in ("paths", "stdin_filename"):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    print_lines([shtab.complete(parser, shell)])
    return 0
