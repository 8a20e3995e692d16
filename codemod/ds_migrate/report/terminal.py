"""The report on a terminal: a highlighted diff per file, its findings, and what to do next.

Only ``Text`` objects reach rich, with markup, emoji and its own highlighting off: source text is shown as it is, long
lines continue in the next row, and nothing is ever cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO

from rich.console import Console
from rich.text import Text

from ds_migrate.findings import FileResult, Report, Severity, TrialStatus
from ds_migrate.report.diff_view import DiffView, wants_split, wrapped
from ds_migrate.report.escaping import place, visible
from ds_migrate.report.highlighting import Palette, SourceText
from ds_migrate.report.hunks import laid_out, unplaced
from ds_migrate.report.patch import changes, split_lines
from ds_migrate.report.plain import ORDER, sorted_findings
from ds_migrate.report.summary import Command, Mode, memory_lines, next_steps, sentences

_LOOK = {
    Severity.ERROR: ("✖", "bold red", "errors"),
    Severity.BLOCKED: ("✖", "bold red", "blocked"),
    Severity.REVIEW: ("▲", "bold yellow", "to review"),
    Severity.CONVERTED: ("✔", "green", "converted"),
}
_TRIAL = {  # before and after writing
    TrialStatus.CONVERTED: ("✔", "green", ("becomes a DeepSpeedTrial", "is a DeepSpeedTrial now")),
    TrialStatus.ALREADY_DEEPSPEED: ("✔", "green", ("is a DeepSpeedTrial already",) * 2),
    TrialStatus.DECLINED: ("–", "yellow", ("is left as it is",) * 2),
    TrialStatus.SKIPPED: ("–", "yellow", ("is skipped by a comment",) * 2),
    TrialStatus.BLOCKED: ("✖", "bold red", ("is blocked",) * 2),
    TrialStatus.UNSUPPORTED_API: ("✖", "bold red", ("is of an API that cannot be converted",) * 2),
}
_READABLE = 110  # columns; prose wider than this is hard to read


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


def show(console: Console, report: Report, mode: Mode, command: Command, view: str = "auto") -> None:
    """Show every file, then all findings by severity, then the summary. ``view``: diffs are unified, split, or auto."""
    screen = Screen(console, mode, view)
    for file in report.files:
        if file.findings or file.to_write or file.trials:
            screen.file(file)
    screen.closing(report, command)


class Screen:
    """The terminal that parts of a report are shown on, one after the other."""

    def __init__(self, console: Console, mode: Mode, view: str = "auto") -> None:
        self._console = console
        self._mode = mode
        self._view = view
        self._shown: set[int] = set()  # findings that a diff has shown
        self._palette = Palette.of(console)
        self._width = max(console.width, 40)

    def file(self, file: FileResult) -> None:
        self._heading(file)
        if self._mode is Mode.PREVIEW and file.to_write:
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
            self._prose(Text(sentence, "bold" if position == 0 else ""), "  ")
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
            added, removed = _size(file)
            head.append(f"  +{added}", "green not bold")
            if removed:
                head.append(f" −{removed}", "red not bold")
        state = self._state(file)
        if state:
            head.append(f"  {state}", "bright_black not bold")
        self._print(head)
        for trial in file.trials:
            symbol, style, texts = _TRIAL[trial.status]
            text = texts[self._mode is Mode.WRITE]
            if self._mode is Mode.CHECK and trial.status is TrialStatus.CONVERTED:
                symbol, style, text = "▲", "bold yellow", "would become a DeepSpeedTrial"
            row = Text(f"  {symbol} ", style)
            row.append(visible(trial.name), "default not bold")
            row.append(f"  {text}", "bright_black not bold")
            self._print(row)
        if self._mode is Mode.PREVIEW and file.to_write:
            self._rule()
        elif self._mode is Mode.PREVIEW:
            self._print(Text())

    def _state(self, file: FileResult) -> str:
        if not file.to_write:
            return "left as it is"
        if self._mode is Mode.WRITE:
            return file.status.value
        return "new file" if file.before is None else ""

    def _diff(self, file: FileResult) -> None:
        """Show the file's changes; findings that explain none of them are kept for the end."""
        before, after = SourceText(file, file.before or b""), SourceText(file, file.after or b"")
        laid = laid_out(file, before.lines, after.lines)
        split = wants_split(self._view, self._width)
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
        if not found:
            return
        symbol, style, name = _LOOK[severity]
        self._print(Text(f"  {symbol} {name} ({len(found)})", style))
        for file, finding in found:
            row = Text()
            row.append(place(file, finding), "bright_black")
            row.append(f" {finding.code} ", "cyan")
            row.append(visible(finding.message))
            self._prose(row, "    ")
            if finding.help:
                help_row = Text("help: ", "bold")
                help_row.append(visible(finding.help), "not bold")
                self._prose(help_row, "      ")
        self._print(Text())

    def _prose(self, text: Text, indent: str) -> None:
        """Show words wrapped at a readable width; a longer path or word continues in the next row."""
        width = min(self._width, _READABLE) - len(indent)
        hang = "  "
        for position, line in enumerate(wrapped(text, width, len(hang))):
            self._print(Text.assemble(indent + (hang if position else ""), line))

    def _rule(self) -> None:
        self._print(Text("─" * self._width, "bright_black"))

    def _print(self, text: Text) -> None:
        self._console.print(text, no_wrap=True, overflow="ignore", crop=False)


def _size(file: FileResult) -> tuple[int, int]:
    old, new = split_lines(file.before or b""), split_lines(file.after or b"")
    changed = changes(old, new)
    return sum(c.new_end - c.new for c in changed), sum(c.old_end - c.old for c in changed)
