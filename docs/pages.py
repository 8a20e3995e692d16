"""Pages made while the site is built: one for each rule, from the text that ``ds-migrate --explain`` prints."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ds_migrate.rules import Rule, all_rules

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
    """Put pages where the navigation names a folder: the rules family by family, other files by name."""
    config.nav = [_expanded(entry, Path(config.docs_dir)) for entry in config.nav or []]
    return config


def _expanded(entry: Any, docs: Path) -> Any:
    if entry == {"Rules": "rules/"}:
        groups = [{title: [f"rules/{rule.code}.md" for rule in found]} for title, found in _families()]
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
    for rule in all_rules():
        files.append(File.generated(config, f"rules/{rule.code}.md", content=page(rule)))
    return files


def on_page_content(html: str, **_: object) -> str:
    """Docstrings name other objects as ``:class:`X```; the role is for other tools."""
    return re.sub(r":(?:attr|class|data|func|meth|mod):(?=<code>)", "", html)


def _families() -> Iterator[tuple[str, list[Rule]]]:
    for digit, (title, _) in FAMILIES.items():
        yield title, [rule for rule in all_rules() if rule.code[3] == digit]


def overview() -> str:
    """The table of all rules."""
    parts = ["# Rules\n", "`ds-migrate --explain DSM204` prints the same text.\n"]
    for (title, found), (_, about) in zip(_families(), FAMILIES.values(), strict=True):
        rows = [f"| [{rule.code}]({rule.code}.md) | {rule.name} | {_inline(rule.summary)} |" for rule in found]
        parts += [f"## {title}\n", f"{about}.\n", "| code | name | |", "|---|---|---|", *rows, ""]
    return "\n".join(parts)


def page(rule: Rule) -> str:
    """A rule's text as Markdown: its headings stay headings, Before and After become code."""
    summary, _, rest = rule.doc.strip().partition("\n")
    parts = [f"# {rule.code} {rule.name}\n", f"**{_inline(summary)}**\n"]
    for heading, body in re.findall(r"^(\S.*)\n((?:(?:[ \t].*)?\n?)*)", rest.strip("\n"), re.M):
        text = textwrap.dedent(body).strip("\n")
        parts.append(f"## {heading}\n")
        if heading in ("Before", "After"):
            parts.append(f"```{_language(rule, text)}\n{text}\n```\n")
        else:
            parts.append(_inline(text) + "\n")
    return "\n".join(parts)


def _language(rule: Rule, text: str) -> str:
    if text.startswith("{"):
        return "json"
    return "yaml" if rule.code[3] == "4" else "python"


def _inline(text: str) -> str:
    """Code in double back quotes, as docstrings have it, in single ones."""
    return re.sub(r"``(.+?)``", r"`\1`", text, flags=re.S)
