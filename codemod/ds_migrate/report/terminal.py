"""The report on a terminal: a highlighted diff per file, its findings, and what to do next.

Only ``Text`` objects reach rich, with markup, emoji and its own highlighting off: source text is shown as it is, long
lines continue in the next row, and nothing is ever cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from rich.console import Console
from rich.text import Text

from ds_migrate.findings import FileResult, Report, Severity
from ds_migrate.report.diff_view import DiffView, wants_split
from ds_migrate.report.escaping import visible
from ds_migrate.report.file_rows import file_rows, size_text, trial_state
from ds_migrate.report.finding_rows import finding_rows, prose
from ds_migrate.report.highlighting import Palette, SourceText
from ds_migrate.report.hunks import laid_out, unplaced
from ds_migrate.report.plain_text import ORDER, sorted_findings
from ds_migrate.report.summary import Command, Mode, memory_lines, next_steps, sentences


@dataclass(frozen=True)
class Look:
    """Settings of a terminal's report: diffs ``unified``, ``split`` or ``auto``; for a ``light`` or ``dark``
    background, or ``auto``; long lists completely or not."""

    view: str = "auto"
    theme: str = "auto"
    is_complete: bool = False


def terminal_console(stream: IO[str], color: str) -> Console:
    """Return a console for ``stream``; ``color`` is auto, always or never. NO_COLOR and FORCE_COLOR hold for auto."""
    return _Console(
        file=stream,
        force_terminal=True if color == "always" else None,
        color_system=None if color == "never" else "auto",
        no_color=False if color == "always" else None,
        markup=False,
        emoji=False,
        highlight=False,
        force_jupyter=False,
    )


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave the exit code to the command line; rich would end the process with 1."""
        raise BrokenPipeError


def show(console: Console, report: Report, mode: Mode, command: Command, look: Look = Look()) -> None:
    """Show every file, then all findings by severity, then the summary."""
    screen = Screen(console, mode, look)
    screen.files([file for file in report.files if file.findings or file.to_write or file.trials])
    screen.closing(report, command)


class Screen:
    """The terminal that parts of a report are shown on, one after the other."""

    def __init__(self, console: Console, mode: Mode, look: Look) -> None:
        self._console = console
        self._mode = mode
        self._look = look
        self._shown: set[int] = set()  # findings that a diff has shown
        self._palette = Palette.of(console, look.theme)
        self._width = max(console.width, 40)

    def files(self, files: Sequence[FileResult]) -> None:
        """Show files with their changes where nothing was decided yet, else in one row each."""
        if self._mode is Mode.PREVIEW:
            for file in files:
                self.file(file)
        else:
            for row in file_rows(files, self._mode, self._look.is_complete):
                self._print(row)

    def file(self, file: FileResult) -> None:
        """Show one file with its changes."""
        self._heading(file)
        if file.to_write:
            self._diff(file)

    def conversion(self, files: Sequence[FileResult]) -> None:
        """Show the files of one conversion, to be decided upon, and what there is to review in them."""
        for file in files:
            self.file(file)
        self._findings(Report(list(files)), Severity.REVIEW)

    def closing(self, report: Report, command: Command) -> None:
        self._rule()
        for severity in ORDER:
            self._findings(report, severity)
        for position, sentence in enumerate(sentences(report, self._mode)):
            style = "bold red" if sentence.startswith("Check failed") else "bold" if position == 0 else ""
            self._prose(Text(sentence, style), "  ")
        if command.shows_memory:
            for line in memory_lines(report):
                self._print(Text(f"  {line}"))
        steps = list(next_steps(report, self._mode, command))
        if steps:
            self._print(Text())
        reasons = max((len(why) for why, _ in steps), default=0)
        for why, line in steps:
            row = Text("  ")
            row.append(f"{why:<{reasons}}  ", "bright_black")
            row.append(line, "bold cyan")
            self._print(row)

    def _heading(self, file: FileResult) -> None:
        head = Text(visible(str(file.path)), "bold")
        if file.to_write:
            head = Text.assemble(head, "  ", size_text(file))
        state = "left as it is" if not file.to_write else "new file" if file.before is None else ""
        if state:
            head.append(f"  {state}", "bright_black not bold")
        self._print(head)
        for trial in file.trials:
            symbol, style, text = trial_state(trial, self._mode)
            self._print(Text.assemble((f"  {symbol} ", style), visible(trial.name), (f"  {text}", "bright_black")))
        if file.to_write:
            self._rule()
        else:
            self._print(Text())

    def _diff(self, file: FileResult) -> None:
        """Show the file's changes; findings that explain none of them are kept for the end."""
        before, after = SourceText(file, file.before or b""), SourceText(file, file.after or b"")
        laid = laid_out(file, before.lines, after.lines)
        split = wants_split(self._look.view, self._width)
        for row in DiffView(before, after, self._palette, self._width, split).rows(laid):
            self._print(row)
        self._print(Text())
        self._shown |= {id(f) for f in file.findings if f not in unplaced(file, laid)}

    def _findings(self, report: Report, severity: Severity) -> None:
        """Show all findings of one severity, file by file, but for those beside the diff that need no action."""
        found = [
            (file, finding)
            for file in report.files
            for finding in sorted_findings(file, [severity])
            if not (severity is Severity.CONVERTED and (id(finding) in self._shown or self._mode is not Mode.PREVIEW))
        ]
        if found:
            for row in finding_rows(found, severity, self._width, self._look.is_complete):
                self._print(row)

    def _prose(self, text: Text, indent: str) -> None:
        for row in prose(text, indent, self._width):
            self._print(row)

    def _rule(self) -> None:
        self._print(Text("─" * self._width, "bright_black"))

    def _print(self, text: Text) -> None:
        self._console.print(text, no_wrap=True, overflow="ignore", crop=False)
