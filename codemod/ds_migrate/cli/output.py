"""Output: data to stdout, everything else to stderr, paths as seen from the current folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ds_migrate.cli.arguments import Arguments
from ds_migrate.command_line import colored
from ds_migrate.files.discovery import project_root
from ds_migrate.findings import Report
from ds_migrate.report import plain_text
from ds_migrate.report.escaping import visible
from ds_migrate.report.summary import Command, Mode


def prepare_streams() -> None:
    """Escape characters that the locale does not have, and let a closed stream take everything."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115 - as long as the process
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


class OutputError(Exception):
    """Stdout takes no more: the disk is full, or the device failed."""


@contextmanager
def stdout_errors() -> Iterator[None]:
    """Raise OutputError for what keeps stdout from being written; a reader who left stays a BrokenPipeError."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        _redirect_to_nowhere(sys.stdout.fileno())
        raise OutputError((error.strerror or type(error).__name__).lower()) from error


def print_lines(lines: Iterable[str]) -> None:
    """Print data to stdout. Raises OutputError."""
    with stdout_errors():
        for line in lines:
            print(line)
        sys.stdout.flush()


def print_bytes(data: bytes) -> None:
    """Write data to stdout. Raises OutputError."""
    with stdout_errors():
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def warn(*lines: str) -> None:
    """Print to stderr; a reader who left, or a full disk, is no error."""
    try:
        for line in lines:
            print(_with_colour(line), file=sys.stderr)
    except OSError:
        _redirect_to_nowhere(sys.stderr.fileno())


def _with_colour(line: str) -> str:
    """Return a line whose first word is coloured as in a report; rich costs too much for it."""
    for word, style in (("ds-migrate:", "1;31"), ("note:", "1;33"), ("    help:", "1")):
        if line.startswith(word):
            return f"{colored(word, style)}{line.removeprefix(word)}"
    return line


def flushed(code: int) -> int:
    """Return ``code`` after a flush that survives a closed pipe, so that the interpreter's own flush does too.

    Raises OutputError.
    """
    try:
        with stdout_errors():
            sys.stdout.flush()
    except BrokenPipeError:
        _redirect_to_nowhere(sys.stdout.fileno())
    return code


def present(report: Report, mode: Mode, command: Command, arguments: Arguments) -> None:
    """Show the report as the command line, or the terminal, wants it."""
    if arguments.format != "text":
        print_lines(_document(report, mode, command, arguments.format))
    elif is_on_terminal(arguments):
        from ds_migrate.report import terminal

        with stdout_errors():
            look = terminal.Look(arguments.view, arguments.theme, arguments.verbose)
            terminal.show(terminal.terminal_console(sys.stdout, arguments.color), report, mode, command, look)
            sys.stdout.flush()
    else:
        if mode is Mode.PREVIEW:
            _print_patch(report)
            warn(*plain_text.finding_lines(report))
        else:
            print_lines(plain_text.written_lines(report) if mode is Mode.WRITE else plain_text.waiting_lines(report))
            print_lines(plain_text.finding_lines(report, plain_text.ORDER[:-1]))
        warn(*plain_text.closing_lines(report, mode, command))


def is_on_terminal(arguments: Arguments) -> bool:
    """Return whether stdout shows what a terminal shows."""
    return arguments.color == "always" or sys.stdout.isatty()


def relative(path: Path) -> str:
    """Return the path as seen from the current folder, when it is below."""
    folder = here()
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


def here() -> Path:
    """Return the current folder, links resolved."""
    return Path(os.path.realpath(os.curdir))


def _document(report: Report, mode: Mode, command: Command, name: str) -> Iterable[str]:
    """Return the report in one of the formats that are the same wherever they go."""
    if name == "json":
        from ds_migrate.report.formats.json import to_json

        return [to_json(report)]
    if name == "sarif":
        from ds_migrate.report.formats.sarif import to_sarif

        return [to_sarif(report, mode)]
    if name == "html":
        from ds_migrate.report.formats.html import to_html

        return [to_html(report, mode, command)]
    from ds_migrate.report.formats.github import to_github

    return to_github(report, mode)


def _print_patch(report: Report) -> None:
    from ds_migrate.report.patch import patch

    folder = here()
    base = patch_base(report, folder)
    print_bytes(patch(report, base))
    if base != folder:
        warn(f"note: names in the patch are relative to {visible(str(base))}")


def patch_base(report: Report, here: Path) -> Path:
    """Return the folder that names in the patch are relative to: ``here`` if it holds all files, else their project."""
    files = [Path(os.path.realpath(file.path)) for file in report.files if file.to_write]
    if not files or all(file.is_relative_to(here) for file in files):
        return here
    return project_root(os.path.commonpath([file.parent for file in files]))


def _redirect_to_nowhere(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
