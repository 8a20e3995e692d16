"""The report on a terminal: a highlighted diff per file, its findings, and what to do next.

Only ``Text`` objects reach rich, with markup, emoji and its own highlighting off: source text is shown as it is, long
lines go on in the next row, and nothing is ever cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import IO

from rich.console import Console
from rich.text import Text

from ds_migrate.report.display import place, visible
from ds_migrate.report.patch import Change, hunks, split_lines
from ds_migrate.report.plain import ORDER, sorted_findings
from ds_migrate.report.source import Palette, SourceText, fold
from ds_migrate.report.summary import Command, Mode, next_steps, sentences
from ds_migrate.report.words import changed_words
from ds_migrate.result import FileResult, Finding, Report, Severity, TrialStatus

_LOOK = {
    Severity.ERROR: ("✖", "bold red", "errors"),
    Severity.BLOCKED: ("✖", "bold red", "blocked"),
    Severity.REVIEW: ("▲", "bold yellow", "to review"),
    Severity.CONVERTED: ("✔", "green", "converted"),
}
_TRIAL = {  # what is said before and after writing
    TrialStatus.CONVERTED: ("✔", "green", ("becomes a DeepSpeedTrial", "is a DeepSpeedTrial now")),
    TrialStatus.ALREADY_DEEPSPEED: ("✔", "green", ("is a DeepSpeedTrial already",) * 2),
    TrialStatus.SKIPPED: ("–", "yellow", ("is skipped by a comment",) * 2),
    TrialStatus.BLOCKED: ("✖", "bold red", ("is blocked",) * 2),
    TrialStatus.UNSUPPORTED_API: ("✖", "bold red", ("is of an API that cannot be converted",) * 2),
}
_READABLE = 110  # columns; prose wider than this is hard to read


def terminal_console(stream: IO[str], color: str) -> Console:
    """A console for ``stream``; ``color`` is auto, always or never. NO_COLOR and FORCE_COLOR hold for auto."""
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


def show(console: Console, report: Report, mode: Mode, command: Command) -> None:
    """Everything the run found, then the summary."""
    view = _View(console, mode)
    for file in report.files:
        if file.findings or file.to_write:
            view.file(file)
    view.closing(report, command)


class _View:
    def __init__(self, console: Console, mode: Mode) -> None:
        self._console = console
        self._mode = mode
        self._palette = Palette.of(console)
        self._width = max(console.width, 40)

    def file(self, file: FileResult) -> None:
        self._heading(file)
        if self._mode is Mode.PREVIEW and file.to_write:
            self._diff(file)
            self._print(Text())
        for severity in ORDER:
            self._findings(file, severity, sorted_findings(file, [severity]))

    def closing(self, report: Report, command: Command) -> None:
        self._rule()
        for position, sentence in enumerate(sentences(report, self._mode)):
            self._prose(Text(sentence, "bold" if position == 0 else ""), "  ")
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
            symbol, style, said = _TRIAL[trial.status]
            row = Text(f"  {symbol} ", style)
            row.append(visible(trial.name), "default not bold")
            row.append(f"  {said[self._mode is Mode.WRITE]}", "bright_black not bold")
            self._print(row)
        self._rule()

    def _state(self, file: FileResult) -> str:
        if not file.to_write:
            return "left as it is"
        if self._mode is Mode.WRITE:
            return file.status.value
        return "new file" if file.before is None else ""

    def _diff(self, file: FileResult) -> None:
        before, after = SourceText(file, file.before or b""), SourceText(file, file.after or b"")
        digits = len(str(max(len(before.lines), len(after.lines))))
        for changes in hunks(before.lines, after.lines):
            if changes[0].old > 0:
                self._gap(before, changes[0], digits)
            for change in changes:
                self._change(change, before, after, digits)

    def _gap(self, before: SourceText, first: Change, digits: int) -> None:
        row = Text(" " * (2 * digits + 3) + "⋯", "bright_black")
        scope = before.scope(first.old)
        if scope:
            row.append(f"  {scope}", "bright_black italic")
        for line in fold(row, self._width):
            self._print(line)

    def _change(self, change: Change, before: SourceText, after: SourceText, digits: int) -> None:
        if not change.changed:
            for offset in range(change.old_end - change.old):
                line = before.styled(change.old + offset, self._palette, " ")
                self._row(" ", line, change.old + offset, change.new + offset, digits)
            return
        removed = [before.styled(index, self._palette, "-") for index in range(change.old, change.old_end)]
        added = [after.styled(index, self._palette, "+") for index in range(change.new, change.new_end)]
        for old, new, old_spans, new_spans in changed_words([t.plain for t in removed], [t.plain for t in added]):
            for text, spans, sign in ((removed[old], old_spans, "-"), (added[new], new_spans, "+")):
                for span in spans:
                    text.stylize(self._palette.line(sign).word, *span)
        for offset, text in enumerate(removed):
            self._row("-", text, change.old + offset, None, digits)
        for offset, text in enumerate(added):
            self._row("+", text, None, change.new + offset, digits)

    def _row(self, sign: str, text: Text, old: int | None, new: int | None, digits: int) -> None:
        """One line of source, in as many rows as it needs."""
        numbers = " ".join(f"{'' if n is None else n + 1:>{digits}}" for n in (old, new))
        look = self._palette.line(sign)
        for position, part in enumerate(fold(text, self._width - len(numbers) - 4)):
            line = Text()
            line.append(f" {' ' * len(numbers) if position else numbers} ", look.gutter)
            line.append(f"{' ' if position else sign} ", look.sign)
            line.append_text(part)
            if look.fills:
                line.append(" " * (self._width - line.cell_len), look.code)
            self._print(line)

    def _findings(self, file: FileResult, severity: Severity, findings: Sequence[Finding]) -> None:
        if not findings:
            return
        symbol, style, name = _LOOK[severity]
        self._print(Text(f"  {symbol} {name}", style))
        for finding in findings:
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
        """Words wrapped at a readable width; a path or a word longer than that goes on in the next row."""
        width = min(self._width, _READABLE) - len(indent)
        hang = "  "
        for position, line in enumerate(_wrapped(text, width, len(hang))):
            self._print(Text.assemble(indent + (hang if position else ""), line))

    def _rule(self) -> None:
        self._print(Text("─" * self._width, "bright_black"))

    def _print(self, text: Text) -> None:
        self._console.print(text, no_wrap=True, overflow="ignore", crop=False)


def _wrapped(text: Text, width: int, hang: int) -> Iterator[Text]:
    rest = text
    room = width
    while rest.cell_len > room:
        cut = rest.plain.rfind(" ", 0, room + 1)
        if cut <= 0:
            pieces = list(fold(rest, room))
            yield pieces[0]
            rest = rest[len(pieces[0]) :]
        else:
            yield rest[:cut]
            rest = rest[cut + 1 :]
        room = width - hang
    yield rest


def _size(file: FileResult) -> tuple[int, int]:
    old, new = split_lines(file.before or b""), split_lines(file.after or b"")
    changed: Iterable[Change] = [c for group in hunks(old, new) for c in group if c.changed]
    return sum(c.new_end - c.new for c in changed), sum(c.old_end - c.old for c in changed)
