"""Pages made while the site is built: one for each code, the page that ``ds-migrate --explain`` prints."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

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


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put pages where the navigation names a folder: the codes group by group, other files by name."""
    config.nav = [_expanded(entry, Path(config.docs_dir)) for entry in config.nav or []]
    return config


def _expanded(entry: Any, docs: Path) -> Any:
    if entry == {"Rules": "rules/"}:
        groups = [{title: [f"rules/{code}.md" for code in found]} for title, found in _families()]
        return {"Rules": ["rules/index.md", *groups]}
    if isinstance(entry, dict) and isinstance(pages := next(iter(entry.values())), list):
        return {next(iter(entry)): [found for page in pages for found in _pages(page, docs)]}
    return entry


def _pages(page: Any, docs: Path) -> list[Any]:
    if not (isinstance(page, str) and page.endswith("/")):
        return [page]
    found = sorted((docs / page).glob("*.md"), key=lambda path: (path.stem not in ("README", "index"), path.name))
    return [path.relative_to(docs).as_posix() for path in found]


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
    parts = ["# Rules\n", "`ds-migrate --explain DSM204` prints the same text.\n"]
    for (title, found), (_, about) in zip(_families(), FAMILIES.values(), strict=True):
        rows = [f"| [{code}]({code}.md) | {code.slug} | {code.summary} |" for code in found]
        parts += [f"## {title}\n", f"{about}.\n", "| code | name | |", "|---|---|---|", *rows, ""]
    return "\n".join(parts)
