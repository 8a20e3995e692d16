"""The page of each code, ``catalog/<code>.md``: what ``--explain`` prints, the documentation shows and the tests run.

A page has the headings of ``HEADINGS``, in their order. ``Before`` and ``After`` hold one block of code each. Under
``When it is blocked`` every message that the code can give has a heading, with ``<name>`` where a value stands, then
the way out; where code shows that, one block is the source before and a second one the source after it.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ds_migrate.rules.codes import Code

BLOCKED = "When it is blocked"
HEADINGS = ("What it does", "Why", "Options", "Before", "After", BLOCKED, "Numbers", "References")
_FENCED = re.compile(r"^```[^\n]*\n(.*?)^```$", re.M | re.S)
_PLACEHOLDER = re.compile(r"<[a-z ]+>")


@dataclass(frozen=True)
class BlockedMessage:
    """One way in which a conversion is blocked: the message, and how to unblock it."""

    message: str
    way_out: str

    def matches(self, text: str) -> bool:
        """Return whether the message of a finding is this one."""
        parts = (re.escape(part) for part in _PLACEHOLDER.split(self.message))
        return re.fullmatch(".+?".join(parts), text, re.S) is not None

    @property
    def example(self) -> tuple[str, str] | None:
        """The source that is blocked and the source that is not; None where the page shows no code."""
        blocks = _FENCED.findall(self.way_out)
        return (blocks[0], blocks[1]) if blocks else None

    @property
    def command(self) -> str:
        """The command line of the example, "" where it is the plain one."""
        found = re.search(r"^With `(ds-migrate .*)`:$", self.way_out, re.M)
        return found.group(1) if found else ""


@dataclass(frozen=True)
class Page:
    """The page of one code: Markdown, by heading."""

    code: Code
    sections: Mapping[str, str]

    def block(self, heading: str) -> str:
        """Return the code under a heading, "" where there is none."""
        found = _FENCED.search(self.sections.get(heading, ""))
        return found.group(1) if found else ""

    @property
    def blocked(self) -> tuple[BlockedMessage, ...]:
        """Every message with which this code blocks a conversion."""
        return tuple(
            BlockedMessage(heading.strip("`"), text) for heading, text in _split(self.sections.get(BLOCKED, ""), "### ")
        )

    @property
    def markdown(self) -> str:
        """The whole page."""
        parts = [f"# {self.code} {self.code.slug}", f"**{self.code.summary}**"]
        for heading, text in self.sections.items():
            parts += [f"## {heading}", text]
        return "\n\n".join(parts) + "\n"

    @property
    def text(self) -> str:
        """The whole page for a terminal: bodies are indented, and nothing is marked up."""
        parts = [f"{self.code} {self.code.slug}\n\n{_unmarked(self.code.summary)}"]
        parts += [f"{heading}\n{textwrap.indent(_unmarked(text), '    ')}" for heading, text in self.sections.items()]
        return "\n\n".join(parts)


@cache
def page_of(code: Code) -> Page:
    """Read the page of a code.

    Raises:
        FileNotFoundError: the catalog has none.
    """
    path = Path(__file__).with_name("catalog") / f"{code}.md"
    return Page(code, dict(_split(path.read_text("utf-8"), "## ")))


def _split(text: str, mark: str) -> Iterator[tuple[str, str]]:
    """Yield each heading with the text below it; blocks of code hold no headings."""
    heading, body, fenced = "", list[str](), False
    for line in text.splitlines():
        fenced ^= line.startswith("```")
        if line.startswith(mark) and not fenced:
            if heading:
                yield heading, "\n".join(body).strip("\n")
            heading, body = line.removeprefix(mark), []
        else:
            body.append(line)
    if heading:
        yield heading, "\n".join(body).strip("\n")


def _unmarked(text: str) -> str:
    """Return Markdown without back quotes and heading marks, with its code indented."""
    text = _FENCED.sub(lambda block: textwrap.indent(block.group(1).rstrip("\n"), "    "), text)
    return re.sub(r"^### ", "", text, flags=re.M).replace("`", "")
