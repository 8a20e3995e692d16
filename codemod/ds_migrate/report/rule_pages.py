"""The list of rules, and the page of one, on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ds_migrate.findings import FileKind, FileResult, Severity
from ds_migrate.report.diff_view import wrapped
from ds_migrate.report.finding_rows import LOOK, READABLE, inline_code
from ds_migrate.report.highlighting import Palette, SourceText, fold
from ds_migrate.rules.codes import Code
from ds_migrate.rules.outcomes import grouped_codes, outcomes_of
from ds_migrate.rules.pages import Page

_QUIET = "bright_black"
_MEANINGS = {
    Severity.CONVERTED: "(same numbers)",
    Severity.REVIEW: "(check it)",
    Severity.BLOCKED: "or error",
}
_KINDS = {"python": FileKind.PYTHON, "yaml": FileKind.EXPERIMENT, "json": FileKind.DS_CONFIG}


def show_rules(console: Console) -> None:
    """Show every code by group, with what a finding can be, its name and its summary."""
    legend = Text()
    for severity, meaning in _MEANINGS.items():
        legend.append(*_symbol(severity)).append(f" {severity.value} ").append(f"{meaning}   ", _QUIET)
    _print(console, legend)
    names = max(len(code.slug) for code in Code) if console.width >= READABLE else 0
    for title, about, codes in grouped_codes():
        _print(console, Text())
        _print(console, Text.assemble((title, "bold yellow"), (f"  {about}", _QUIET)))
        for code in codes:
            symbols = Text().join(Text(*symbol) for symbol in dict.fromkeys(map(_symbol, outcomes_of(code))))
            symbols.pad_right(3 - symbols.cell_len)
            lead = Text.assemble("  ", (code.value, "cyan"), "  ", symbols, "  ")
            name = Text(code.slug.ljust(names), "bold")
            hang = lead.cell_len + (names + 2 if names else 0)
            _prose(console, Text.assemble(lead, name, "  ", inline_code(code.summary)), hang)
    _print(console, Text())
    _print(console, Text.assemble(("ds-migrate --explain CODE", "bold cyan"), ("  shows the page of a rule", _QUIET)))


def show_page(console: Console, page: Page) -> None:
    """Show the page of a code, its source highlighted."""
    head = Text.assemble((page.code.value, "bold cyan"), " ", (page.code.slug, "bold"), "  ")
    for severity in outcomes_of(page.code):
        head.append(" ").append(*_symbol(severity)).append(f" {severity.value}", _QUIET)
    _print(console, head)
    _prose(console, inline_code(page.code.summary))
    for heading, text in page.sections.items():
        _print(console, Text())
        _print(console, Text(heading, "bold yellow"))
        for row in _body(text, min(console.width, READABLE) - 2, Palette.of(console, "auto")):
            _print(console, Text.assemble("  ", row) if row.plain else row)


def _body(text: str, width: int, palette: Palette) -> Iterator[Text]:
    """Yield a section in rows: paragraphs are filled, code keeps its lines."""
    language = None
    block: list[str] = []
    for line in [*text.split("\n"), None]:
        if language is not None and line is not None:
            if line == "```":
                yield from _source("\n".join(block) + "\n", _KINDS.get(language), width, palette)
                language, block = None, []
            else:
                block.append(line)
        elif line is None:
            yield from _paragraph(block, width)
        elif line.startswith("```"):
            language = line.removeprefix("```")
        elif line.startswith("### "):
            message = Text(line.removeprefix("### ").strip("`"), "bold")
            lead = Text("✖ ", LOOK[Severity.BLOCKED][1])
            yield from wrapped(Text.assemble(lead, message), width, 2)
        elif line and (not block or not line.startswith("- ")):
            block.append(line)
        else:
            yield from _paragraph(block, width)
            block = [line] if line else []
            if not line:
                yield Text()


def _paragraph(lines: list[str], width: int) -> Iterator[Text]:
    if lines:
        hang = 2 if lines[0].startswith("- ") else 0
        for position, row in enumerate(wrapped(inline_code(" ".join(map(str.strip, lines))), width, hang)):
            yield Text.assemble(" " * hang if position else "", row)


def _source(text: str, kind: FileKind | None, width: int, palette: Palette) -> Iterator[Text]:
    data = text.encode()
    source = SourceText(FileResult(Path(), kind or FileKind.PYTHON), data)
    for index in range(len(source.lines)):
        line = source.styled(index, palette, " ") if kind else Text(source.text(index))
        for row in fold(line, width - 2):
            yield Text.assemble("  ", row)


def _symbol(severity: Severity) -> tuple[str, str]:
    symbol, style, _ = LOOK[severity]
    return symbol, style


def _prose(console: Console, text: Text, hang: int = 0) -> None:
    for position, row in enumerate(wrapped(text, min(console.width, READABLE + hang), hang)):
        _print(console, Text.assemble(" " * hang if position else "", row))


def _print(console: Console, text: Text) -> None:
    console.print(text, no_wrap=True, overflow="ignore", crop=False)
