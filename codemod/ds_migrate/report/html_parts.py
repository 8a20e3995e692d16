"""Parts that the HTML pages of this project share: the document, its base style, code and tables."""

from __future__ import annotations

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


def code(text: object) -> str:
    """Return text as code."""
    return f"<code>{escape(str(text))}</code>"


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
    return "<tr>" + "".join(f"<{tag}{kind}>{cell}</{tag}>" for kind, cell in zip(kinds, cells, strict=True)) + "</tr>"
