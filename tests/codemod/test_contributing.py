"""The first rule that CONTRIBUTING has its reader write works as it says."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import ds_migrate.rules
import examples
import pytest
from ds_migrate.rules import Rule, conversion_rules

CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"
MODULE = "dsm399_one_hparam"


@pytest.fixture
def first_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rule]:
    """The rule, as if its file lay among the others."""
    (text,) = re.findall(r"^```python\n(.*?)^```", CONTRIBUTING.read_text(encoding="utf-8"), re.M | re.S)
    folder = tmp_path / "rules"
    folder.mkdir()
    (folder / f"{MODULE}.py").write_text(text)
    monkeypatch.setattr(ds_migrate.rules, "__path__", [*ds_migrate.rules.__path__, str(folder)])
    conversion_rules.cache_clear()
    try:
        yield next(rule for rule in conversion_rules() if rule.code == "DSM399")
    finally:
        sys.modules.pop(f"ds_migrate.rules.{MODULE}", None)
        conversion_rules.cache_clear()


def test_the_first_rule_converts_its_example(first_rule: Rule, tmp_path: Path) -> None:
    example = examples.example_of(first_rule.doc)
    assert example is not None
    project = tmp_path / "project"
    project.mkdir()
    result = examples.convert(project, examples.module(example.before))
    assert examples.problems(result) == []
    assert result.after is not None
    written = examples.methods(result.after.decode())
    for name, text in examples.methods(example.after).items():
        assert written[name].strip() == text.strip()
    assert [f.code for f in result.findings].count("DSM399") == 1


def test_contributing_names_the_file_that_the_rule_lies_in() -> None:
    assert f"codemod/ds_migrate/rules/{MODULE}.py" in CONTRIBUTING.read_text(encoding="utf-8")


def test_the_code_of_the_first_rule_is_free() -> None:
    assert "DSM399" not in {rule.code for rule in conversion_rules()}
