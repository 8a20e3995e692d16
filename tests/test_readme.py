"""README and the other documents: what they show is what there is."""

from __future__ import annotations

import importlib.util
import re
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from ds_migrate.rules.codes import Code
from ds_migrate.rules.registry import conversion_rules

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCUMENTS = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def text_of(document: Path) -> str:
    return document.read_text(encoding="utf-8")


def commands(document: Path) -> list[str]:
    """The lines of the ``sh`` blocks."""
    blocks = re.findall(r"^```sh\n(.*?)^```", text_of(document), re.M | re.S)
    return [line for block in blocks for line in block.splitlines() if line.strip() and not line.startswith("#")]


def setup_commands() -> tuple[str, str]:
    """The two commands that set a fresh machine up: the first that previews, the first that tests."""
    lines = [line for line in commands(README) if "-m venv" in line]
    assert len(lines) == 2
    return lines[0], lines[1]


def links() -> Iterator[tuple[Path, str]]:
    for document in DOCUMENTS:
        text = re.sub(r"```.*?```", "", text_of(document), flags=re.S)
        for target in re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"", text):
            yield document, target[0] or target[1]


def anchors(document: Path) -> set[str]:
    """The names that headings have on GitHub."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text_of(document), flags=re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_ci_runs_the_test_command_of_the_readme() -> None:
    script = text_of(ROOT / ".ci/run")
    (assigned,) = re.findall(r"^readme_tests=(.*)$", script, re.M)
    assert shlex.split(assigned) == [setup_commands()[1]]
    assert re.search(r'^bash -c "\$readme_tests"$', script, re.M)


def test_ci_runs_the_tests_that_the_readmes_command_leaves_out() -> None:
    pytest_command = setup_commands()[1].rpartition("&& ")[2]
    assert f"\n{pytest_command} -m slow\n" in text_of(ROOT / ".ci/run")


def test_ci_stops_at_the_first_failure() -> None:
    script = ROOT / ".ci/run"
    assert script.stat().st_mode & stat.S_IXUSR
    assert "\nset -euo pipefail\n" in text_of(script)
    # "set -e" passes over a failure before "&&", "||" or in an "if"
    after_setup = text_of(script).partition("readme_tests=")[2].partition("\n")[2]
    assert not re.search(r"&&|\|\||\bif\b", re.sub(r"#.*", "", after_setup))


def test_setup_commands_pin_what_they_install() -> None:
    for command in setup_commands():
        assert "-c constraints.txt" in command


def test_the_preview_command_names_a_fixture() -> None:
    words = shlex.split(setup_commands()[0])
    assert (ROOT / words[-1]).is_dir()
    assert Path(words[-2]).name == "ds-migrate"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for where, target in links():
        if where != document or target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        generated = re.fullmatch(r"rules/(DSM\d+|index)\.md", path)
        if generated:  # docs/pages.py makes those
            assert generated[1] in {"index", *Code}, f"{where.name} links to {target}"
            continue
        file = (where.parent / path) if path else where
        assert file.exists(), f"{where.name} links to {target}"
        if anchor:
            assert anchor in anchors(file), f"{where.name} links to {target}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_codes_in_documents_are_rules(document: Path) -> None:
    known = set(Code)
    toys = {"DSM399"}  # the rule that CONTRIBUTING has its reader write
    assert set(re.findall(r"\bDSM\d{3}\b", text_of(document))) <= known | toys


def test_every_rule_that_rewrites_python_is_on_the_page_of_conversions() -> None:
    named = set(re.findall(r"\bDSM\d{3}\b", text_of(ROOT / "docs/conversions.md")))
    assert {rule.code for rule in conversion_rules()} <= named


def test_the_readme_has_at_most_700_words() -> None:
    assert len(text_of(README).split()) <= 700


@pytest.mark.parametrize("document", [README, ROOT / "docs/index.md"], ids=lambda path: path.name)
def test_the_largest_difference_is_that_of_the_equivalence_table(document: Path) -> None:
    table = text_of(ROOT / "docs/equivalence.md").partition("<!-- made by")[2].partition("<!-- end -->")[0]
    gaps = re.findall(r"\d\.\de-\d\d", table)
    assert len(gaps) > 5
    (quoted,) = re.findall(r"\[([\d.e-]+)\]\((?:docs/)?equivalence\.md\)", text_of(document))
    assert float(quoted) == max(map(float, gaps))


def test_nothing_advises_an_installation_from_pypi() -> None:
    """The package is not published: it is installed from a clone."""
    messages = [path for folder in ("codemod", "runtime") for path in (ROOT / folder).rglob("*.py")]
    for document in [*DOCUMENTS, *(ROOT / "docs").rglob("*.md"), *messages]:
        assert not re.search(r"pip install '?ds-migrate", text_of(document)), document


def preview() -> ModuleType:
    spec = importlib.util.spec_from_file_location("preview", ROOT / "docs/images/preview.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pictures_show_what_the_tool_prints() -> None:
    module = preview()
    printed = module.words(module.picture("dark"))  # the other one has the same words in other colours
    for theme in ("dark", "light"):
        kept = (ROOT / f"docs/images/preview-{theme}.svg").read_text(encoding="utf-8")
        assert module.words(kept) == printed, "run python docs/images/preview.py"


def test_the_picture_and_the_preview_command_show_the_same_fixture() -> None:
    assert shlex.split(setup_commands()[0])[-2:] == [".venv/bin/ds-migrate", preview().COMMAND[-1]]
