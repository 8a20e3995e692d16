"""How a report leaves: on a terminal, as a patch with findings beside it, or as a document for another tool."""

from __future__ import annotations

import os
import sys

from ds_migrate.cli.streams import here, print_lines, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from ds_migrate.cli.arguments import Arguments
    from ds_migrate.findings import Report
    from ds_migrate.report.summary import Command, Mode


def on_terminal(arguments: Arguments) -> bool:
    """Whether stdout shows what a terminal shows."""
    return arguments.color == "always" or sys.stdout.isatty()


def present(report: Report, mode: Mode, command: Command, arguments: Arguments) -> None:
    """Show the report as the command line, or the terminal, wants it."""
    if arguments.format != "text":
        print_lines(_document(report, mode, command, arguments.format))
        return
    if on_terminal(arguments):
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
        print_lines(plain.written_lines(report) if mode is Modes.WRITE else plain.waiting_lines(report))
        print_lines(plain.finding_lines(report, plain.ORDER[:-1]))
    say(*plain.closing_lines(report, mode, command))


def _document(report: Report, mode: Mode, command: Command, name: str) -> Iterable[str]:
    """The report in one of the formats that are the same wherever they go."""
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
    from ds_migrate.report.escaping import visible
    from ds_migrate.report.patch import patch

    folder = here()
    base = patch_base(report, folder)
    sys.stdout.buffer.write(patch(report, base))
    sys.stdout.buffer.flush()
    if base != folder:
        say(f"note: names in the patch are relative to {visible(str(base))}")


def patch_base(report: Report, here: Path) -> Path:
    """Return the folder that names in the patch are relative to: ``here`` if it holds all files, else their project."""
    from pathlib import Path

    from ds_migrate.files.discovery import project_root

    files = [Path(os.path.realpath(file.path)) for file in report.files if file.to_write]
    if not files or all(file.is_relative_to(here) for file in files):
        return here
    return project_root(os.path.commonpath([file.parent for file in files]))
