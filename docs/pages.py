"""Pages made while the site is built: one for each code, the page that ``ds-migrate --explain`` prints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from ds_migrate.rules.codes import Code
from ds_migrate.rules.outcomes import grouped_codes, outcomes_of
from ds_migrate.rules.pages import page_of

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[1]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of the codes, group by group, where the navigation names their folder."""
    groups = [{title: [f"rules/{code}.md" for code in found]} for title, _, found in grouped_codes()]
    rules = {"Rules": ["rules/index.md", *groups]}
    config.nav = [rules if entry == {"Rules": "rules/"} else entry for entry in config.nav or []]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    from mkdocs.structure.files import File

    files.append(File.generated(config, "rules/index.md", content=overview()))
    for code in Code:
        files.append(File.generated(config, f"rules/{code}.md", content=page_of(code).markdown + source_of(code)))
    return files


def source_of(code: Code) -> str:
    """Return the module of a rule that rewrites Python, folded; empty for other codes."""
    return "".join(
        f'\n## Source\n\n<details markdown="1"><summary>{path.relative_to(ROOT).as_posix()}</summary>\n\n'
        f"```python\n{path.read_text(encoding='utf-8')}```\n\n</details>\n"
        for path in sorted(ROOT.glob(f"codemod/ds_migrate/rules/{code.lower()}_*.py"))
    )


def on_page_content(html: str, **_: object) -> str:
    """Remove the roles of ``:class:`X```, which other tools read in docstrings."""
    return re.sub(r":(?:attr|class|data|func|meth|mod):(?=<code>)", "", html)


def overview() -> str:
    """Return the table of all codes."""
    parts = [
        "# Rules\n",
        "Each finding of a report has a code. *Converted* means that the numbers stay the same, *review* that you "
        "should check a change, *blocked* that the trial is left unchanged, *error* that a file could not be read, "
        "checked or written. `ds-migrate --explain DSM204` prints the page of a code. "
        "[What it converts](../conversions.md) lists the same by construct.\n",
    ]
    for title, about, found in grouped_codes():
        rows = [
            f"| [{code}]({code}.md) | {code.slug} | {', '.join(outcomes_of(code))} | {code.summary} |" for code in found
        ]
        parts += [f"## {title}\n", f"{about}.\n", "| code | name | result | |", "|---|---|---|---|", *rows, ""]
    return "\n".join(parts)
