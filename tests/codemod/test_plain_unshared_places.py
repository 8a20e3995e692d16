"""Plain loops on several ranks: conditions in loops and branches that differ by rank, where none may wait."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from plain_loops import HEADER, LOOP, convert, run

RECORD = """\
    record = {'loss': loss.item()}
    if x.sum() > 0:
        record['x'] = x.sum().item()
    try:
        check(record)
    except ValueError:
        break
"""
IN_LOOP = """\
def check(record):
    for key, value in record.items():
        if value != value:
            raise ValueError(key)


"""
IN_BRANCH = """\
def check(record):
    if record['loss'] > 3:
        test(record)


def test(record):
    if record['loss'] != record['loss']:
        raise ValueError(record)


"""
SAME_KEYS = RECORD.replace("    if x.sum() > 0:\n        record", "    record")


def found_in(text: str, folder: Path) -> tuple[str, list[str]]:
    """Return the conversion of a script, and its reviews of ranks that cannot agree."""
    report = run(folder, train=text)
    messages = [finding.message for _, finding in report.findings(Severity.REVIEW)]
    return convert(folder, text), [message for message in messages if "cannot agree" in message]


@pytest.mark.parametrize(
    ("check", "place"),
    [
        (IN_LOOP, "the loop in line {} of train.py has other rounds on each"),
        (IN_BRANCH, "some ranks alone take the branch in line {} of train.py"),
    ],
)
def test_where_some_ranks_alone_come_to_a_condition_it_is_for_review(check: str, place: str, tmp_path: Path) -> None:
    text = HEADER + check + LOOP + RECORD
    line = text[: text.index("    for key" if check is IN_LOOP else "    if record")].count("\n") + 1
    after, reviews = found_in(text, tmp_path)
    assert reviews == ["ranks may part here, by their shares of the data, and cannot agree: " + place.format(line)]
    assert "rank_0_decides" not in after


def test_in_a_loop_of_as_many_rounds_rank_0_decides(tmp_path: Path) -> None:
    after, reviews = found_in(HEADER + IN_LOOP + LOOP + SAME_KEYS, tmp_path)
    assert "if rank_0_decides(value != value):" in after
    assert reviews == []
