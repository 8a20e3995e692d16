"""The table of traps in docs/runtime/config-errors.md: comments name the tests of each row, and these tests exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = TESTS.parents[1] / "docs" / "runtime" / "config-errors.md"
TABLE = PAGE.read_text(encoding="utf-8").partition("## Traps")[2]
ROWS = [line for line in TABLE.splitlines() if line.startswith("| ")][1:]
NAMED = re.findall(r"(test_\w+\.py)::(test_\w+)", TABLE)


def test_every_row_names_its_tests_where_readers_do_not_see_them() -> None:
    assert len(ROWS) > 30
    assert [row for row in ROWS if not re.search(r"<!-- (test_\w+\.py::test_\w+(, )?)+ --> \|$", row)] == []
    assert "test_" not in re.sub(r"<!--.*?-->", "", PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("file", "name"), sorted(set(NAMED)))
def test_a_trap_is_held_by_a_test(file: str, name: str) -> None:
    assert f"def {name}(" in (TESTS / file).read_text(encoding="utf-8")
