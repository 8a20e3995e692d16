"""One way of writing a part of a trial, and what must become of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import examples
import pytest
from ds_migrate.findings import Severity
from guarantees import assert_guaranteed, assert_stable


@dataclass(frozen=True)
class Idiom:
    """``source`` is a whole module, or methods of a trial as ``examples.module`` takes them.

    ``has``: lines of the output, in this order (leading and trailing spaces do not count). ``lacks``: text that must
    not be in it. ``review``: codes of findings that a person should read; every other idiom must have none.
    ``blocked``: code of the finding that blocks, and a part of its message.
    """

    source: str
    has: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    review: tuple[str, ...] = ()
    blocked: tuple[str, str] | None = None

    @property
    def module(self) -> str:
        return self.source if "\nclass " in self.source else examples.module(self.source)

    def check(self, folder: Path) -> None:
        text = self.module
        result = examples.convert(folder, text)
        problems = examples.problems(result)
        if self.blocked is not None:
            code, message = self.blocked
            found = [f for f in result.findings if f.severity is Severity.BLOCKED]
            assert [f for f in found if f.code == code and message in f.message], problems
            assert all(f.line > 0 and f.help for f in found)
            assert result.after is None
            return
        assert problems == []
        assert result.after is not None
        after = result.after.decode()
        assert_lines(after, self.has)
        for gone in self.lacks:
            assert gone not in after
        assert sorted({f.code for f in result.findings if f.severity is Severity.REVIEW}) == sorted(self.review)
        assert_guaranteed(text.encode(), result.after)
        (folder / "model_def.py").write_bytes(result.after)
        assert_stable(folder)


def assert_lines(after: str, wanted: tuple[str, ...]) -> None:
    """The wanted lines are there in order, others between them."""
    lines = [line.strip() for line in after.splitlines()]
    at = 0
    for line in wanted:
        assert line in lines[at:], f"no line {line!r} after line {at} of\n{after}"
        at = lines.index(line, at) + 1


def idioms(cases: dict[str, Idiom]) -> pytest.MarkDecorator:
    """Parametrizes a test over the cases, named by their keys."""
    return pytest.mark.parametrize("idiom", [pytest.param(case, id=name) for name, case in cases.items()])
