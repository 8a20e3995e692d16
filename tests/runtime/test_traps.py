"""The list of traps in docs/runtime/config-errors.md: every test that it names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = TESTS.parents[1] / "docs" / "runtime" / "config-errors.md"
NAMED = re.findall(r"`(test_\w+\.py)::(test_\w+)`", PAGE.read_text(encoding="utf-8"))


def test_the_list_is_found() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if "::test_" in line]
    assert len(rows) > 30


@pytest.mark.parametrize(("file", "name"), sorted(set(NAMED)))
def test_a_trap_is_held_by_a_test(file: str, name: str) -> None:
    assert f"def {name}(" in (TESTS / file).read_text(encoding="utf-8")
