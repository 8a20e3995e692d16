"""What the doctor says: rows of a few sections, each sound, worth a look, or in the way of training."""

from __future__ import annotations

import dataclasses
from typing import Literal

State = Literal["", "good", "note", "bad"]


@dataclasses.dataclass(frozen=True)
class Row:
    """One finding.

    Attributes:
        name: what it is about.
        text: what was found, and what to do about it.
        state: ``bad`` where training would fail or be another than asked for; empty for plain facts.
    """

    name: str
    text: str
    state: State = ""


@dataclasses.dataclass(frozen=True)
class Section:
    """Findings under one title."""

    title: str
    rows: list[Row]
