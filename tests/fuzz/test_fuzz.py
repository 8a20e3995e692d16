"""The fuzzers, a minute of them: what no case of a seed may break. Every find is a test of its own elsewhere."""

from __future__ import annotations

from pathlib import Path

import examples
import pytest
from ds_migrate.options import Options
from ds_migrate.rules import registry

from fuzz.cases import KINDS, Case, make_case
from fuzz.properties import violations

CASES = 24  # of each kind, by default in two parts for two processes


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_no_case_breaks_a_property(kind: str, part: int, tmp_path: Path) -> None:
    seeds = range(part, CASES, 2)
    broken = {seed: found for seed in seeds if (found := violations(make_case(kind, seed), tmp_path / "project"))}
    assert not broken


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_gives_the_same_case_each_time(kind: str) -> None:
    assert make_case(kind, 1) == make_case(kind, 1) != make_case(kind, 2)


FAULTS = {
    "crash: ": ("fuzz.properties.discover", lambda *_: 1 / 0),
    "control character: ": ("ds_migrate.report.formats.github.visible", lambda text: text),
    "undo: the files": ("fuzz.properties.writer.undo", lambda _entry: None),
    "second run: ": ("fuzz.properties.writer.apply", lambda _report, _here: None),
    "DSM003: ": ("ds_migrate.rules.dsm302_step_optimizer.apply", lambda _ctx: 1 / 0),
}


@pytest.mark.parametrize("found", FAULTS)
def test_a_fault_is_found(found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.conversion_rules.cache_clear()
    name, fault = FAULTS[found]
    monkeypatch.setattr(name, fault)
    files = {b"a\x1b[31m.py": examples.module().encode()}
    broken = violations(Case("names", 0, files, Options()), tmp_path / "project")
    registry.conversion_rules.cache_clear()
    assert any(violation.startswith(found) for violation in broken)
