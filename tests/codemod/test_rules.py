"""Every rule page's example converts as the page says, in every layout that a file may have."""

from __future__ import annotations

import functools
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import examples
import pytest
import strategies
from ds_migrate.findings import Report, Severity
from ds_migrate.report.patch import patch
from ds_migrate.rules import pages
from ds_migrate.rules.codes import Code
from ds_migrate.rules.pages import HEADINGS, BlockedMessage, page_of
from ds_migrate.rules.registry import conversion_rules

CATALOG = Path(pages.__file__).with_name("catalog")
PAGES = [pytest.param(code, id=code) for code in Code if examples.example_of(page_of(code))]
LAYOUTS: dict[str, Callable[[str], bytes]] = {
    **strategies.LAYOUTS,
    "latin-1 cookie": lambda text: ("# -*- coding: latin-1 -*-\n# caf\xe9\n" + text).encode("latin-1"),
}
MIXED_LAYOUTS = {
    "BOM, tabs, CRLF, no final newline": lambda text: LAYOUTS["BOM"](
        text.replace("    ", "\t").rstrip("\n").replace("\n", "\r\n")
    ),
    "latin-1 cookie, two spaces": lambda text: LAYOUTS["latin-1 cookie"](text.replace("    ", "  ")),
}


@functools.cache
def converted_example(code: Code) -> bytes:
    """Return what the example of a page becomes."""
    example = examples.example_of(page_of(code))
    assert example is not None
    with tempfile.TemporaryDirectory() as folder:
        after = examples.convert(Path(folder), examples.module(example.before), options=example.options).after
    assert after is not None
    return after


@pytest.mark.parametrize("code", PAGES)
def test_example_converts_as_its_page_shows(code: Code, tmp_path: Path) -> None:
    example = examples.example_of(page_of(code))
    assert example is not None
    result = examples.convert(tmp_path, examples.module(example.before), options=example.options)
    assert examples.problems(result) == []
    assert result.after is not None
    after = result.after.decode()
    written = examples.methods(after)
    for name, text in examples.methods(example.after).items():
        assert written[name].strip() == text.strip()
    for line in examples.imports(example.after):
        assert line in after


@pytest.mark.parametrize("layout", MIXED_LAYOUTS)
@pytest.mark.parametrize("code", PAGES)
def test_layout_survives(code: Code, layout: str, tmp_path: Path) -> None:
    assert_survives(code, MIXED_LAYOUTS[layout], tmp_path)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_part_of_a_layout_survives_alone(layout: str, tmp_path: Path) -> None:
    assert_survives(Code.GRADIENT_CLIPPING, LAYOUTS[layout], tmp_path)


def assert_survives(code: Code, layout: Callable[[str], bytes], folder: Path) -> None:
    """Convert the example of a page in a layout, and compare it with the converted example in that layout."""
    example = examples.example_of(page_of(code))
    assert example is not None
    written = examples.convert(folder, layout(examples.module(example.before)), options=example.options).after
    assert written == layout(converted_example(code).decode())


@pytest.mark.parametrize("code", PAGES)
def test_second_run_changes_nothing(code: Code, tmp_path: Path) -> None:
    example = examples.example_of(page_of(code))
    assert example is not None
    (tmp_path / "model_def.py").write_bytes(converted_example(code))
    assert not any(f.to_write for f in examples.run(tmp_path, options=example.options).files if f.path.suffix == ".py")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_patch_applies_with_git(layout: str, tmp_path: Path) -> None:
    data = LAYOUTS[layout](examples.module())
    result = examples.convert(tmp_path, data)
    text = patch(Report([result]), tmp_path.resolve())
    subprocess.run(["git", "apply", "-"], input=text, cwd=tmp_path, check=True)
    assert (tmp_path / "model_def.py").read_bytes() == result.after


@pytest.mark.parametrize("code", [pytest.param(code, id=code) for code in Code])
def test_a_page_has_the_headings_of_all_pages(code: Code) -> None:
    source = (CATALOG / f"{code}.md").read_text(encoding="utf-8")
    assert source.startswith(f"# {code} {code.slug}\n\n## What it does\n\n")
    assert source.count("```") % 2 == 0
    headings = list(page_of(code).sections)
    assert headings == [heading for heading in HEADINGS if heading in headings]
    assert {"What it does", "Why", "Numbers"} <= set(headings)
    assert all(page_of(code).sections.values())
    assert code.summary.endswith(".")


def test_every_page_belongs_to_a_code() -> None:
    assert sorted(path.name for path in CATALOG.iterdir()) == [f"{code}.md" for code in sorted(Code)]


def test_codes_and_names_are_used_once() -> None:
    assert len(set(Code)) == len({code.slug for code in Code}) == len(Code.__members__)


def test_every_module_that_rewrites_python_has_the_code_of_its_name() -> None:
    modules = sorted(path.stem for path in CATALOG.parent.glob("dsm*.py"))
    assert modules == [f"{rule.code.lower()}_{rule.code.slug.replace('-', '_')}" for rule in conversion_rules()]


WAYS_OUT = [
    pytest.param(code, blocked, id=f"{code} {blocked.message}")
    for code in Code
    for blocked in page_of(code).blocked
    if blocked.example is not None and code.group != "4"
]


@pytest.mark.parametrize(("code", "blocked"), WAYS_OUT)
def test_what_is_blocked_converts_once_it_is_written_as_its_page_shows(
    code: Code, blocked: BlockedMessage, tmp_path: Path
) -> None:
    assert blocked.example is not None
    before, after = (examples.source(text) for text in blocked.example)
    options = examples.options_in(blocked.command)
    found = examples.convert(tmp_path, before, options=options).findings
    assert {f.code for f in found if f.severity is Severity.BLOCKED and blocked.matches(f.message)} == {code}
    result = examples.convert(tmp_path, after, options=options)
    assert examples.problems(result) == []
    assert result.after is not None
