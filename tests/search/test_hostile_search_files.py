"""Files of a search's directory that somebody planted or tore: an error that names the file, or no effect at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from trial_runtime._whole_file import write_whole
from trial_runtime.train.search.assignment import Assignment, Outcome

GOOD: dict[str, Any] = {"trial": 1, "experiment": 1, "request_id": "x", "seed": 1, "hparams": {}}

WRONG: list[dict[str, Any]] = [
    {"trial": "../../x"}, {"trial": 2}, {"seed": "a"}, {"hparams": []}, {"order": None}, {"length": 5},
    {"request_id": 3}, {"experiment": True},
]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "5", "null", "[" * 100_000, "\0", '{"trial": 1', json.dumps({**GOOD, "more": 1}),
        *(json.dumps({**GOOD, **change}) for change in WRONG),
    ],
    ids=range(16),
)  # fmt: skip
def test_a_file_that_is_no_assignment_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "0001.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"0001\.json: is no assignment of a search's trial"):
        Assignment.read(path)
    assert Outcome.read(path) is None


def test_an_assignment_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "0012.json"
    written = Assignment(**{**GOOD, "trial": 12, "order": 1, "length": {"batches": 3}})
    written.write(path)
    assert Assignment.read(path) == written


@pytest.mark.parametrize("planted", ["file.json", ".file.json.tmp"])
def test_a_planted_link_is_replaced_and_not_followed(planted: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / planted).symlink_to(outside)
    write_whole(tmp_path / "run/file.json", "new")
    assert outside.read_text() == "mine"
    assert (tmp_path / "run/file.json").read_text() == "new"
    assert os.listdir(tmp_path / "run") == ["file.json"]  # noqa: PTH208
