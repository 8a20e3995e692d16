"""The `after/` folders are what the tool writes, byte for byte."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fixture_folders import FIXTURES, PLAIN, TRIALS

from equivalence.regenerate import LEFT_BY_RUNS, check, migrate, plain


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not set(LEFT_BY_RUNS) & set(path.parts)
    }


@pytest.mark.parametrize("name", (*TRIALS, *PLAIN))
def test_after_is_what_the_tool_writes_and_needs_no_more_work(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    code, printed = migrate(name, folder)
    assert code == 0, printed
    written, kept = contents(folder), contents(FIXTURES / name / "after")
    assert written.keys() == kept.keys()
    for file, data in written.items():
        assert data == kept[file], f"{file} is not what the tool writes: run python -m equivalence.regenerate in tests/"

    assert check(folder, "--check", *plain(name))[0] == 0
    assert check(folder, "--write", *plain(name))[0] == 0
    assert contents(folder) == written


@pytest.mark.parametrize("name", TRIALS)
def test_fixtures_before_their_conversion_are_work(name: str, tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / name / "before", tmp_path / name)
    assert check(tmp_path / name, "--check")[0] == 1
