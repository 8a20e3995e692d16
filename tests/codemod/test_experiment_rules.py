"""The documentation of the findings: complete, and its examples are what the tool does."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from ds_migrate.experiment import RULES, Rule
from experiment_project import codes, project

HEADINGS = ("What it does", "Why", "Before", "After", "Numbers", "References")


def sections(rule: Rule) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    lines = rule.doc.splitlines()
    assert lines[:2] == [rule.summary, ""]
    current: list[str] = []
    for line in lines[2:]:
        if line and not line.startswith(" "):
            current = found.setdefault(line, [])
        else:
            current.append(line)
    return {heading: textwrap.dedent("\n".join(body)).strip("\n") + "\n" for heading, body in found.items()}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_every_finding_is_documented(rule: Rule) -> None:
    said = sections(rule)
    assert set(said) <= set(HEADINGS)
    assert {"What it does", "Why", "Numbers"} <= set(said)
    assert rule.summary.endswith(".")


def test_codes_and_names_are_unique() -> None:
    assert len({rule.code for rule in RULES}) == len({rule.name for rule in RULES}) == len(RULES)


@pytest.mark.parametrize(
    "rule", [r for r in RULES if r.code.startswith("DSM4") and "\nBefore\n" in r.doc], ids=lambda rule: rule.code
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("final", [True, False])
def test_examples_are_what_the_tool_does(rule: Rule, newline: str, final: bool, tmp_path: Path) -> None:
    here = project(tmp_path)
    said = sections(rule)
    before, after = (
        (said[name] if final else said[name].rstrip("\n")).replace("\n", newline) for name in ("Before", "After")
    )
    target = "determined" if rule.code == "DSM409" else "runtime"
    result = here.result(before, target=target)
    assert (result.after or result.before) == after.encode()
    assert rule.code in [code for code, _ in codes(result)]
    assert not any(again.to_write for again in here.results(after, target=target))
