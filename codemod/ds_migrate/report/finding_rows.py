"""The findings of one severity on a terminal: what is the same in many places is shown once, with its places."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rich.text import Text

from ds_migrate.findings import FileResult, Finding, Severity
from ds_migrate.report.counts import count
from ds_migrate.report.diff_view import wrapped
from ds_migrate.report.escaping import place, visible
from ds_migrate.report.excerpt import excerpt

LOOK = {
    Severity.ERROR: ("✖", "bold red", "errors"),
    Severity.BLOCKED: ("✖", "bold red", "blocked"),
    Severity.REVIEW: ("▲", "bold yellow", "to review"),
    Severity.CONVERTED: ("✔", "green", "converted"),
}
READABLE = 110  # columns; prose wider than this is hard to read
_FEW = 8  # entries that each show their source line, without --verbose
_MANY = 20  # entries, and places of an entry, without --verbose
_QUIET = "bright_black"
_CODE = re.compile(r"`([^`]+)`")


def finding_rows(
    found: Sequence[tuple[FileResult, Finding]], severity: Severity, width: int, is_complete: bool
) -> Iterator[Text]:
    """Yield a heading and the findings, each with its places and its help."""
    symbol, style, name = LOOK[severity]
    yield Text(f"  {symbol} {name} ({len(found)})", style)
    entries: dict[tuple[str, str, str | None], list[tuple[FileResult, Finding]]] = {}
    for file, finding in found:
        entries.setdefault((finding.code, finding.message, finding.help), []).append((file, finding))
    shown = list(entries.items())[: None if is_complete else _MANY]
    has_excerpts = is_complete or len(shown) <= _FEW
    for (code, message, advice), group in shown:
        places = [place(file, finding) for file, finding in group]
        row = Text()
        if len(places) == 1:
            row.append(f"{places[0]} ", _QUIET)
        row.append(f"{code} ", "cyan").append(inline_code(visible(message)))
        yield from prose(row, "    ", width)
        if len(places) > 1:
            cut = places if is_complete else places[:_MANY]
            more = f", and {len(places) - len(cut)} more" if len(cut) < len(places) else ""
            yield from prose(Text(f"{', '.join(cut)}{more}", _QUIET), "      ", width)
        elif has_excerpts:
            yield from _excerpt_rows(*group[0], width)
        if advice:
            yield from prose(Text.assemble(("help: ", "bold"), inline_code(visible(advice))), "      ", width)
    left = sum(len(group) for _, group in list(entries.items())[len(shown) :])
    if left:
        yield Text(f"    … and {count(left, 'finding')} more: --verbose lists them", _QUIET)
    yield Text()


def _excerpt_rows(file: FileResult, finding: Finding, width: int) -> Iterator[Text]:
    gutter = len(str(finding.line)) + 1
    found = excerpt(file, finding, width - len("      ") - gutter - len("│ "))
    if found is None:
        return
    code = (found.before, found.marked, found.after)
    yield Text.assemble("      ", (f"{found.line} │ ", _QUIET), *code)
    yield Text.assemble("      ", (f"{'':{gutter}}│ ", _QUIET), (found.underline, LOOK[finding.severity][1]))


def inline_code(text: str) -> Text:
    """Return a line of Markdown with its code coloured."""
    return Text.assemble(*((part, "cyan" if at % 2 else "") for at, part in enumerate(_CODE.split(text))))


def prose(text: Text, indent: str, width: int) -> Iterator[Text]:
    """Yield words wrapped at a readable width; a longer path or word continues in the next row."""
    hang = "  "
    for position, line in enumerate(wrapped(text, min(width, READABLE) - len(indent), len(hang))):
        yield Text.assemble(indent + (hang if position else ""), line)
