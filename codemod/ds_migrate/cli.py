"""The command line: arguments in, exit code out. Everything heavy is imported where it is needed.

Data goes to stdout (a patch, JSON, findings that were asked for), talk to stderr. On a terminal stdout shows it all.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence

from ds_migrate import arguments as command_line

TYPE_CHECKING = False  # typing's own name for it costs 2 ms of every run
if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

    from ds_migrate.discover import Source
    from ds_migrate.options import Options
    from ds_migrate.report.summary import Command, Mode
    from ds_migrate.result import Report


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line (``sys.argv`` by default) and return its exit code; never raises."""
    _prepare_streams()
    try:
        return _flushed(_run(command_line.parse(argv)))
    except SystemExit as end:  # argparse: help and version are 0, wrong usage is 2
        return _flushed(end.code if isinstance(end.code, int) else 2)
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    except BrokenPipeError:
        return _flushed(0)
    except Exception:
        import traceback

        say(traceback.format_exc(), "ds-migrate: this is a fault in ds-migrate itself; please report it")
        return 2


def _run(arguments: Namespace) -> int:
    if arguments.list_rules:
        return _list_rules()
    if arguments.explain:
        return _explain(arguments.explain)
    if arguments.completion:
        from ds_migrate.completion import script

        _print([script(arguments.completion)])
        return 0
    if arguments.undo:
        return _undo(arguments.paths)
    return _migrate(arguments)


def _migrate(arguments: Namespace) -> int:
    from ds_migrate.discover import discover

    if arguments.paths == [command_line.STDIN]:
        from ds_migrate import stdin

        return stdin.convert(arguments)
    chosen = selection(arguments)
    sources = discover(arguments.paths, chosen)
    for path in arguments.paths if arguments.patterns else ():
        if _real(path).is_file() and not chosen(os.path.realpath(path)):
            say(f"note: {path} is left out by --include, --exclude or [tool.ds-migrate] in pyproject.toml")
    if arguments.format == "text" and not _concerned(sources) and all(source.error is None for source in sources):
        from ds_migrate.report.counts import nothing_found

        sentence = nothing_found(len(sources))
        if _on_terminal(arguments):
            _print([sentence])
        else:
            say(sentence)
        return 0
    return migrate_sources(sources, arguments)


def selection(arguments: Namespace) -> Callable[[str], bool]:
    if not arguments.patterns:
        return lambda _name: True
    from ds_migrate.selection import Selection

    parts = [
        Selection(os.path.realpath(base), include or (), exclude or ()) for base, include, exclude in arguments.patterns
    ]
    return lambda name: all(part(name) for part in parts)


def _concerned(sources: list[Source]) -> bool:
    """Whether anything that could be read may hold a trial, or may follow one and was named alone."""
    from ds_migrate.discover import CONFIG_SUFFIXES

    readable = [source for source in sources if source.error is None]
    python = [source for source in readable if not source.name.endswith(CONFIG_SUFFIXES)]
    return any(source.data is not None for source in python or readable)


def migrate_sources(sources: list[Source], arguments: Namespace) -> int:
    from contextlib import suppress

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
        _present(report, mode, Command(arguments.paths, arguments.repeated), arguments)
    return code


def options_of(arguments: Namespace) -> Options:
    """How to convert, as the command line says."""
    from ds_migrate.options import Options

    return Options(
        arguments.target,
        arguments.zero,
        arguments.precision,
        arguments.offload or "none",
        arguments.optimizer_in_config or False,
    )


def report_of(sources: list[Source], arguments: Namespace) -> Report:
    """What the engine makes of the sources that could be read, and the news of the others."""
    from ds_migrate.result import FileResult, FileStatus, Finding, Report, Severity

    report = Report()
    if _concerned(sources):
        from ds_migrate.control import apply_comments
        from ds_migrate.engine import migrate
        from ds_migrate.markers import add_markers

        readable = [source for source in sources if source.error is None]
        options = options_of(arguments)
        report = _with_progress(readable, options) if sys.stderr.isatty() else migrate(readable, options)
        add_markers(report, readable)
        apply_comments(report, readable)
    report.searched = len(sources)
    for source in sources:
        if source.error is not None:
            finding = Finding("DSM001", Severity.ERROR, 0, f"cannot be read: {source.error}")
            report.files.append(FileResult(source.path, status=FileStatus.ERROR, findings=[finding]))
    return report


def _with_progress(sources: list[Source], options: Options) -> Report:
    from ds_migrate.engine import migrate
    from ds_migrate.progress import Progress

    progress = Progress(sys.stderr)
    try:
        return migrate(sources, options, progress)
    finally:
        progress.clear()


def _asking() -> bool:
    from ds_migrate.interactive import on_terminal

    return on_terminal()


def _write(report: Report, arguments: Namespace) -> None:
    from ds_migrate import write
    from ds_migrate.report.display import visible

    if not any(file.to_write for file in report.files):
        return
    at_risk = [visible(_relative(path)) for path in write.uncommitted(report)]
    if at_risk:
        files = "a file that has" if len(at_risk) == 1 else f"{len(at_risk)} files that have"
        more = ", ..." if len(at_risk) > 3 else ""
        say(f"note: writing to {files} changes not committed to git: {', '.join(at_risk[:3])}{more}")
    if arguments.interactive:
        _decide(report, arguments)
    write.apply(report, _here())


def _decide(report: Report, arguments: Namespace) -> None:
    from ds_migrate.interactive import Dialogue, ask, decide, open_editor
    from ds_migrate.report.summary import Mode
    from ds_migrate.report.terminal import Screen, terminal_console

    screen = Screen(terminal_console(sys.stdout, arguments.color), Mode.PREVIEW, arguments.view)
    decide(report, Dialogue(screen.conversion, ask, print, open_editor))


def _present(report: Report, mode: Mode, command: Command, arguments: Namespace) -> None:
    if arguments.format != "text":
        _print(_document(report, mode, command, arguments.format))
        return
    if _on_terminal(arguments):
        from ds_migrate.report import terminal

        terminal.show(terminal.terminal_console(sys.stdout, arguments.color), report, mode, command, arguments.view)
        sys.stdout.flush()
        return

    from ds_migrate.report import plain
    from ds_migrate.report.summary import Mode as Modes

    if mode is Modes.PREVIEW:
        _print_patch(report)
        say(*plain.finding_lines(report))
    else:
        _print(plain.written_lines(report) if mode is Modes.WRITE else plain.waiting_lines(report))
        _print(plain.finding_lines(report, plain.ORDER[:-1]))
    say(*plain.closing_lines(report, mode, command))


def _document(report: Report, mode: Mode, command: Command, name: str) -> Iterable[str]:
    """The report in one of the formats that are the same wherever they go."""
    if name == "json":
        from ds_migrate.report.as_json import to_json

        return [to_json(report)]
    if name == "sarif":
        from ds_migrate.report.as_sarif import to_sarif

        return [to_sarif(report, mode)]
    if name == "html":
        from ds_migrate.report.as_html import to_html

        return [to_html(report, mode, command)]
    from ds_migrate.report.as_github import to_github

    return to_github(report, mode)


def _print_patch(report: Report) -> None:
    from ds_migrate.report.display import visible
    from ds_migrate.report.patch import patch, patch_base

    here = _here()
    base = patch_base(report, here)
    sys.stdout.buffer.write(patch(report, base))
    sys.stdout.buffer.flush()
    if base != here:
        say(f"note: names in the patch are relative to {visible(str(base))}")


def _undo(paths: Sequence[str]) -> int:
    from ds_migrate import journal, write
    from ds_migrate.report.display import visible

    here = _here()
    named = _real(paths[0]) if paths else here
    try:
        entry = journal.last_entry(named if named.is_dir() else named.parent) or journal.last_entry(here)
        if entry is None:
            say(f"ds-migrate: no run is left to undo in {visible(str(named))}")
            return 2
        created = {change.path for change in entry.changes if change.before is None}
        restored = write.undo(entry)
    except (journal.JournalError, write.RefusedError) as error:
        say(f"ds-migrate: {visible(str(error))}")
        return 2
    _print(f"{'removed' if path in created else 'restored'} {visible(_relative(path))}" for path in restored)
    say("The last run is undone." if restored else "The last run was undone already, by hand.")
    return 0


def _list_rules() -> int:
    from ds_migrate.rules import all_rules

    rules = all_rules()
    width = max((len(rule.name) for rule in rules), default=0)
    _print(f"{rule.code}  {rule.name:<{width}}  {rule.summary}" for rule in rules)
    return 0


def _explain(wanted: str) -> int:
    from ds_migrate.rules import all_rules

    rules = {rule.code: rule for rule in all_rules()}
    for rule in rules.values():
        if wanted.upper() == rule.code or wanted.lower() == rule.name:
            _print([f"{rule.code} {rule.name}", "", rule.doc.strip()])
            return 0
    known = [*rules, *(rule.name for rule in rules.values())]
    meant = command_line.suggestion(wanted, known)
    say(f"ds-migrate: no rule is called {wanted!r}{meant}; --list-rules names them all")
    return 2


def _relative(path: Path) -> str:
    """As seen from here, when it is below."""
    here = _here()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _here() -> Path:
    return _real(os.curdir)


def _real(name: str) -> Path:
    """Absolute, links resolved."""
    from pathlib import Path

    return Path(os.path.realpath(name))


def _on_terminal(arguments: Namespace) -> bool:
    return arguments.color == "always" or sys.stdout.isatty()


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)
    sys.stdout.flush()


def say(*lines: str) -> None:
    """Talk; a reader who left does not matter."""
    try:
        for line in lines:
            print(line, file=sys.stderr)
    except BrokenPipeError:
        _redirect_to_nowhere(sys.stderr.fileno())


def _prepare_streams() -> None:
    """A character that the locale cannot say is escaped, and a closed stream takes everything."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115 - as long as the process
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _flushed(code: int) -> int:
    """``code``, after a flush that survives a closed pipe, so that the interpreter's own flush does too."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _redirect_to_nowhere(sys.stdout.fileno())
    return code


def _redirect_to_nowhere(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
