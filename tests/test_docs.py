"""Pages that are made while the site is built; the site itself is built by .ci/run."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from ds_migrate.rules import Rule, all_rules

ROOT = Path(__file__).parents[1]
RULES = {rule.code: rule for rule in all_rules()}


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pages", ROOT / "docs/pages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def headings(rule: Rule) -> list[str]:
    return re.findall(r"^(?! )(\S.*)$", rule.doc.strip().partition("\n")[2], re.M)


def plain(text: str) -> str:
    """Without back quotes, and whatever its white space."""
    return " ".join(text.replace("`", "").split())


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_rule_page_has_all_of_the_rules_text(rule: Rule, pages: ModuleType) -> None:
    page = pages.page(rule)
    assert re.findall(r"^## (.*)$", page, re.M) == headings(rule)
    assert "``" not in re.sub(r"^```.*?^```$", "", page, flags=re.M | re.S)
    for line in rule.doc.strip().splitlines():
        assert plain(line) in plain(page)


def test_before_and_after_are_code_in_their_language(pages: ModuleType) -> None:
    assert "## Before\n\n```python\ndef train_batch(" in pages.page(RULES["DSM204"])
    assert "## Before\n\n```yaml\nentrypoint:" in pages.page(RULES["DSM403"])


def test_every_rule_is_in_the_overview_once(pages: ModuleType) -> None:
    assert re.findall(r"\[(DSM\d+)\]\(\1\.md\)", pages.overview()) == sorted(RULES)
