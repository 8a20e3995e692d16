"""Pages made while the site is built: one for each public class of the runtime, one for the functions of a package."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

RUNTIME = Path(__file__).parents[1] / "runtime"
PACKAGES = {"reference/pytorch/": "trial_runtime.pytorch", "reference/deepspeed/": "trial_runtime.pytorch.deepspeed"}


_SPECIFICATIONS = {
    '"Configuration JSON"': "https://www.deepspeed.ai/docs/config-json/",
    "RFC 8259": "https://www.rfc-editor.org/rfc/rfc8259",
    "YAML 1.2": "https://yaml.org/spec/1.2.2/",
}
_REFERENCE = re.compile("|".join(map(re.escape, _SPECIFICATIONS)) + r"|`?[A-Za-z]\w*(?:\.\w+)*`?")


@dataclass(frozen=True)
class Name:
    """A public name of a package. Classes and modules have a page. ``summary`` begins its docstring."""

    name: str
    has_page: bool
    summary: str


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of a package where the navigation names its folder."""
    config.nav = [_expanded(entry) for entry in config.nav or []]
    return config


def _expanded(entry: Any) -> Any:
    if isinstance(entry, list):
        return [_expanded(inner) for inner in entry]
    if isinstance(entry, dict):
        return {title: _expanded(below) for title, below in entry.items()}
    if entry in PACKAGES:
        return [f"{entry}{page}.md" for page in ("index", *pages(PACKAGES[entry]))]
    return entry


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of each package."""
    from mkdocs.structure.files import File

    for folder, package in PACKAGES.items():
        files.append(File.generated(config, f"{folder}index.md", content=overview(package)))
        for page, content in pages(package).items():
            files.append(File.generated(config, f"{folder}{page}.md", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Turn the references of a rule's page into links."""
    return with_links(markdown) if page.file.src_uri.startswith("rules/DSM") else markdown


def with_links(markdown: str) -> str:
    """Return a rule's page whose references are links: other rules, classes of the runtime, specifications."""
    before, heading, rest = markdown.partition("## References\n")
    references, source, after = rest.partition("\n## Source\n")
    return before + heading + _REFERENCE.sub(_link, references) + source + after


def _link(found: re.Match[str]) -> str:
    text = found[0]
    name = text.strip("`")
    if text in _SPECIFICATIONS:
        return f"[{text}]({_SPECIFICATIONS[text]})"
    if re.fullmatch(r"DSM\d{3}", name):
        return f"[{name}]({name}.md)"
    for folder, package in PACKAGES.items():
        owner = name.removeprefix(f"{package}.").partition(".")[0]
        if owner in _classes(package):
            return f"[`{name}`](../{folder}{owner}.md)"
    return text


@cache
def _classes(package: str) -> frozenset[str]:
    return frozenset(each.name for each in public_names(package) if each.has_page)


def overview(package: str) -> str:
    """Return the table of the names of a package."""
    rows = []
    for each in public_names(package):
        link = f"{each.name}.md" if each.has_page else f"functions.md#{package}.{each.name}"
        rows.append(f"| [`{each.name}`]({link}) | {each.summary} |")
    return "\n".join([f"# {package}\n", "| name | |", "|---|---|", *rows, ""])


def pages(package: str) -> dict[str, str]:
    """Return the pages of a package by name: one for each class, and ``functions`` for everything else."""
    names = public_names(package)
    found = {
        each.name: f"# {each.name}\n\n::: {package}.{each.name}\n"
        "    options: {show_root_heading: false, show_root_toc_entry: false, inherited_members: true}\n"
        for each in names
        if each.has_page
    }
    others = [f"::: {package}.{each.name}\n" for each in names if not each.has_page]
    return {**found, "functions": "\n".join(["# Functions\n", *others])}


def public_names(package: str) -> list[Name]:
    """Return what a package lists in ``__all__``, read from its source: nothing is imported."""
    tree = ast.parse((RUNTIME / package.replace(".", "/") / "__init__.py").read_text("utf-8"))
    modules = {
        alias.name: node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    (names,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    return [_described(name, modules[name]) for name in names if not name.startswith("_")]


def _described(name: str, module: str) -> Name:
    folder = RUNTIME / module.replace(".", "/")
    own = folder / f"{name}.py"  # the name is a module, such as samplers
    tree = ast.parse((own if own.is_file() else folder.with_suffix(".py")).read_text("utf-8"))
    nodes = [node for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name]
    found = tree if own.is_file() else nodes[-1] if nodes else None
    text = (ast.get_docstring(found) if found else None) or ""
    summary = text.partition("\n\n")[0].replace("\n", " ").replace("``", "`")
    return Name(name, isinstance(found, (ast.Module, ast.ClassDef)), re.sub(r":\w+:(?=`)", "", summary))
