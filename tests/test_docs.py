"""Pages that are made while the site is built; the site itself is built by .ci/run."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from ds_migrate.rules.codes import Code
from ds_migrate.rules.pages import page_of

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pages", ROOT / "docs/pages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("code", Code, ids=str)
def test_the_page_of_the_site_is_the_file_of_the_catalog_and_the_summary(code: Code) -> None:
    source = (ROOT / f"codemod/ds_migrate/rules/catalog/{code}.md").read_text(encoding="utf-8")
    title, _, rest = source.partition("\n")
    assert page_of(code).markdown == f"{title}\n\n**{code.summary}**\n{rest}"


def test_before_and_after_are_code_in_their_language() -> None:
    assert "## Before\n\n```python\ndef train_batch(" in page_of(Code.GRADIENT_CLIPPING).markdown
    assert "## Before\n\n```yaml\nentrypoint:" in page_of(Code.GRADIENT_ACCUMULATION).markdown


def test_every_rule_is_in_the_overview_once(pages: ModuleType) -> None:
    assert re.findall(r"\[(DSM\d+)\]\(\1\.md\)", pages.overview()) == sorted(Code)
