"""Findings, and how they are shown: as panels in a terminal, as plain lines, or as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Literal, TextIO

State = Literal["", "good", "note", "bad"]


@dataclasses.dataclass(frozen=True)
class Row:
    """One finding.

    Attributes:
        name: its subject.
        text: what was found, and what to do about it.
        state: ``bad`` where training would fail or differ from the config; empty for plain facts.
    """

    name: str
    text: str
    state: State = ""


@dataclasses.dataclass(frozen=True)
class Section:
    """Findings under one title."""

    title: str
    rows: list[Row]


_MARKS = {"": " ", "good": "+", "note": "!", "bad": "x"}
_STYLES = {"": "", "good": "green", "note": "yellow", "bad": "bold red"}


def show(sections: Sequence[Section], out: TextIO) -> None:
    """Write the findings: on a terminal in colour and wrapped, elsewhere one line each.

    Each has a mark: ``+`` sound, ``!`` worth a look, ``x`` in the way of training.
    """
    if not out.isatty():
        for section in sections:
            out.write(f"{section.title}\n")
            for row in section.rows:
                out.write(f"  {_MARKS[row.state]} {row.name}: {row.text}\n")
        return
    from rich.console import Console, Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    console = Console(file=out, highlight=False, emoji=False)
    for section in sections:
        table = Table.grid(padding=(0, 1))
        table.add_column(width=1)
        table.add_column(max_width=34, overflow="fold")
        table.add_column(overflow="fold")
        for row in section.rows:
            style = _STYLES[row.state]
            table.add_row(Text(_MARKS[row.state], style=style), Text(row.name, style=style or "dim"), Text(row.text))
        console.print(
            Panel(Group(table), title=Text(section.title, style="bold"), title_align="left", border_style="dim")
        )


def as_json(sections: Sequence[Section]) -> str:
    """Return the findings for programs: sections with ``title`` and ``rows`` of ``name``, ``text``, ``state``."""
    return json.dumps([dataclasses.asdict(section) for section in sections], indent=2)
