"""Pages made while the site is built: one for each code, the page that ``ds-migrate --explain`` prints."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ds_migrate.rules.codes import Code
from ds_migrate.rules.pages import page_of

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

FAMILIES = {
    "0": ("Files and trials", "What is recognised, refused, or left alone"),
    "1": ("Imports", "Names that move"),
    "2": ("The engine", "Models, optimizers, schedules, clipping"),
    "3": ("Training and evaluation", "What happens to each batch"),
    "4": ("Experiment configs", "The YAML beside the code"),
    "5": ("DeepSpeed configs", "The JSON that is written"),
}


# What a code can mean for a place in the source. Pages with blocked messages mean "blocked" too.
RESULTS = {
    "converted": """
        DSM011 DSM101 DSM201 DSM202 DSM203 DSM204 DSM205 DSM301 DSM302 DSM303 DSM306 DSM310 DSM312 DSM320 DSM330 DSM345
        DSM351 DSM353 DSM390 DSM401 DSM402 DSM403 DSM404 DSM405 DSM407 DSM501 DSM502 DSM507 DSM508 DSM512""",
    "review": """
        DSM005 DSM006 DSM011 DSM012 DSM013 DSM016 DSM017 DSM018 DSM101 DSM201 DSM202 DSM205 DSM301 DSM303 DSM306 DSM310
        DSM330 DSM340 DSM350 DSM352 DSM353 DSM390 DSM401 DSM402 DSM404 DSM405 DSM406 DSM407 DSM408 DSM409 DSM410 DSM411
        DSM412 DSM413 DSM415 DSM416 DSM503 DSM504 DSM510 DSM511 DSM512""",
    "error": "DSM001 DSM002 DSM003 DSM004 DSM411 DSM505 DSM508",
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of the codes, group by group, where the navigation names their folder."""
    groups = [{title: [f"rules/{code}.md" for code in found]} for title, found in _families()]
    rules = {"Rules": ["rules/index.md", *groups]}
    config.nav = [rules if entry == {"Rules": "rules/"} else entry for entry in config.nav or []]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    from mkdocs.structure.files import File

    files.append(File.generated(config, "rules/index.md", content=overview()))
    for code in Code:
        files.append(File.generated(config, f"rules/{code}.md", content=page_of(code).markdown))
    return files


def on_page_content(html: str, **_: object) -> str:
    """Remove the roles of ``:class:`X```, which other tools read in docstrings."""
    return re.sub(r":(?:attr|class|data|func|meth|mod):(?=<code>)", "", html)


def _families() -> Iterator[tuple[str, list[Code]]]:
    for digit, (title, _) in FAMILIES.items():
        yield title, [code for code in Code if code.group == digit]


def overview() -> str:
    """Return the table of all codes."""
    parts = [
        "# Rules\n",
        "Each finding of a report has a code. *Converted* means that the numbers stay the same, *review* that you "
        "should check a change, *blocked* that the trial is left unchanged, *error* that a file could not be read, "
        "checked or written. `ds-migrate --explain DSM204` prints the page of a code. "
        "[What it converts](../conversions.md) lists the same by construct.\n",
    ]
    for (title, found), (_, about) in zip(_families(), FAMILIES.values(), strict=True):
        rows = [
            f"| [{code}]({code}.md) | {code.slug} | {', '.join(results(code))} | {code.summary} |" for code in found
        ]
        parts += [f"## {title}\n", f"{about}.\n", "| code | name | result | |", "|---|---|---|---|", *rows, ""]
    return "\n".join(parts)


def results(code: Code) -> list[str]:
    """Return what a finding with this code can mean."""
    found = [result for result, codes in RESULTS.items() if code.value in codes.split()]
    return [*found, "blocked"] if page_of(code).blocked else found
