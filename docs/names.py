"""The table of Determined's names in docs/differences.md, from the codemod's: ``python docs/names.py`` writes it."""

from __future__ import annotations

from pathlib import Path

from ds_migrate.names import ROWS, Row, Verdict

BEGIN, END = "<!-- names: made by docs/names.py -->\n", "<!-- end of names -->\n"
PAGE = Path(__file__).parent / "differences.md"


def names_table() -> str:
    """Return the table in Markdown: one line for the names of a module that become the same."""
    lines = ["| module | names | verdict |", "|---|---|---|"]
    groups: dict[tuple[str, Verdict, str], list[str]] = {}
    for row in ROWS.values():
        if row.covers:
            module, name = _split(row)
            groups.setdefault((module, row.verdict, row.advice), []).append(name)
    for (module, verdict, advice), names in groups.items():
        shown = ", ".join(f"`{name}`" for name in sorted(names, key=str.lower))
        lines.append(f"| `{module}` | {shown} | {verdict.value}{f': {advice}' if advice else ''} |")
    return "\n".join(lines) + "\n"


def with_table(page: str) -> str:
    """Return the page with the table between its marks."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + "\n" + names_table() + "\n" + END + rest.partition(END)[2]


def _split(row: Row) -> tuple[str, str]:
    """Return the module and the name in it; methods keep their class."""
    parts = row.name.split(".")
    classes = [index for index, part in enumerate(parts[:-1]) if part[0].isupper()]
    at = classes[0] if classes else len(parts) - 1
    return ".".join(parts[:at]) or "(top level)", ".".join(parts[at:])


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
