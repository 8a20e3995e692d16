"""Plain loops that end once they have gone through some number of samples."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from plain_loops import HEADER, LOOP, run

COUNTED = "a rank counts the samples of its share alone to end this: n ranks go through n times as many"


def _reviews(tmp_path: Path, text: str) -> list[str]:
    return [f.message for _, f in run(tmp_path, train=HEADER + text).findings(Severity.REVIEW)]


@pytest.mark.parametrize("added", ["x.size(0)", "x.shape[0]", "len(y)"])
def test_a_loop_that_ends_by_its_samples_is_for_review(added: str, tmp_path: Path) -> None:
    text = f"seen = 0\n{LOOP}    seen += {added}\n    if seen >= 100:\n        break\n"
    assert _reviews(tmp_path, text) == [COUNTED]


def test_rounds_that_end_by_their_samples_are_for_review(tmp_path: Path) -> None:
    inner = "".join(f"    {line}\n" for line in LOOP.splitlines())
    text = f"seen = 0\nwhile seen < 100:\n{inner}        size = x.size(0)\n        seen += size\n"
    assert _reviews(tmp_path, text) == [COUNTED]


@pytest.mark.parametrize(
    "lines", ["seen += 1\nif seen >= 100:\n    break", "seen += len(x)\nif seen % 100 == 0:\n    count = 1"]
)
def test_a_loop_that_ends_by_its_steps_or_not_by_its_samples_has_no_review(lines: str, tmp_path: Path) -> None:
    text = f"seen = 0\n{LOOP}" + "".join(f"    {line}\n" for line in lines.splitlines())
    assert _reviews(tmp_path, text) == []
