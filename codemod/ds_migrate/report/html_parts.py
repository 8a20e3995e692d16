"""Parts that the HTML pages of this project share: the document, its base style, code and tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources


def document(title: str, style: str, body: Iterable[str]) -> str:
    """Return a page that needs no other file.

    It is ASCII: every other character is a reference, so that no encoding can damage it.

    Args:
        title: text.
        style: CSS, after that of ``base.css``.
        body: parts in HTML.
    """
    folder = resources.files(__package__)
    page = folder.joinpath("page.html").read_text(encoding="utf-8")
    base = folder.joinpath("base.css").read_text(encoding="utf-8")
    for name, text in (("title", escape(title)), ("style", base + style), ("body", "\n".join(body))):
        page = page.replace(f"@{name}@", text, 1)
    return page.encode("ascii", "xmlcharrefreplace").decode("ascii")


def contents(parts: Iterable[str]) -> list[str]:
    """Return the parts of a page below links to its headings, each of which gets an anchor."""
    links: list[str] = []

    def linked(heading: re.Match[str]) -> str:
        links.append(f'<li><a href="#part-{len(links)}">{heading[1]}</a></li>')
        return f'<h2 id="part-{len(links) - 1}">{heading[1]}</h2>'

    anchored = [re.sub(r"<h2(?: id=\w+)?>(.*?)</h2>", linked, part) for part in parts]
    return [f"<nav aria-label=Contents><ul>{''.join(links)}</ul></nav>", *anchored]


def code(text: object) -> str:
    """Return text as code."""
    return f"<code>{escape(str(text))}</code>"


def inline_code(text: str) -> str:
    """Return text with what stands between backticks as code."""
    parts = re.split(r"`([^`]+)`", text)
    return "".join(code(part) if at % 2 else escape(part) for at, part in enumerate(parts))


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """Return a table that scrolls where it is too wide.

    Args:
        headings: HTML, one for each column.
        rows: HTML of each cell.
        numbers: columns to align on the right.
    """
    kinds = [" class=n" if column in numbers else "" for column in range(len(headings))]
    head = _row("th", kinds, headings)
    return f"<div class=wide><table>{head}{''.join(_row('td', kinds, row) for row in rows)}</table></div>"


def _row(tag: str, kinds: Sequence[str], cells: Sequence[str]) -> str:
    scope = " scope=col" if tag == "th" else ""
    return (
        "<tr>"
        + "".join(f"<{tag}{scope}{kind}>{cell}</{tag}>" for kind, cell in zip(kinds, cells, strict=True))
        + "</tr>"
    )
