"""Every rule page's example converts as the page says, in every layout that a file may have."""

from __future__ import annotations

import subprocess
from pathlib import Path

import examples
import pytest
from ds_migrate.findings import Report
from ds_migrate.report.patch import patch
from ds_migrate.rules import Rule, all_rules, conversion_rules

HEADINGS = ("What it does", "Why", "Numbers")
PAGES = [pytest.param(rule, id=rule.code) for rule in conversion_rules() if examples.example_of(rule.doc)]
LAYOUTS = {
    "LF": lambda text: text.encode(),
    "CRLF": lambda text: text.replace("\n", "\r\n").encode(),
    "BOM": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "tabs": lambda text: text.replace("    ", "\t").encode(),
    "two spaces": lambda text: text.replace("    ", "  ").encode(),
    "no final newline": lambda text: text.rstrip("\n").encode(),
    "latin-1 cookie": lambda text: ("# -*- coding: latin-1 -*-\n# caf\xe9\n" + text).encode("latin-1"),
}


@pytest.mark.parametrize("rule", PAGES)
def test_example_converts_as_its_page_says(rule: Rule, tmp_path: Path) -> None:
    example = examples.example_of(rule.doc)
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


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rule", PAGES)
def test_layout_survives(rule: Rule, layout: str, tmp_path: Path) -> None:
    example = examples.example_of(rule.doc)
    assert example is not None
    text = examples.module(example.before)
    plain = examples.convert(tmp_path, text, options=example.options).after
    written = examples.convert(tmp_path, LAYOUTS[layout](text), options=example.options).after
    assert plain is not None and written is not None
    assert written == LAYOUTS[layout](plain.decode())


@pytest.mark.parametrize("rule", PAGES)
def test_second_run_changes_nothing(rule: Rule, tmp_path: Path) -> None:
    example = examples.example_of(rule.doc)
    assert example is not None
    first = examples.convert(tmp_path, examples.module(example.before), options=example.options).after
    assert first is not None
    (tmp_path / "model_def.py").write_bytes(first)
    assert not any(f.to_write for f in examples.run(tmp_path, options=example.options).files if f.path.suffix == ".py")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_patch_applies_with_git(layout: str, tmp_path: Path) -> None:
    data = LAYOUTS[layout](examples.module())
    result = examples.convert(tmp_path, data)
    text = patch(Report([result]), tmp_path.resolve())
    subprocess.run(["git", "apply", "-"], input=text, cwd=tmp_path, check=True)
    assert (tmp_path / "model_def.py").read_bytes() == result.after


@pytest.mark.parametrize("rule", [pytest.param(r, id=r.code) for r in all_rules()])
def test_page_has_its_headings(rule: Rule) -> None:
    assert rule.summary.endswith(".")
    for heading in HEADINGS:
        assert f"\n{heading}\n" in rule.doc


def test_codes_are_used_once() -> None:
    codes = [rule.code for rule in all_rules()]
    assert len(codes) == len(set(codes))
