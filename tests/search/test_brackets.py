"""Brackets and rungs, against the tables of Determined's tests."""

from __future__ import annotations

from typing import Any

import pytest
from trial_runtime.search.brackets import adaptive_brackets, asha_bracket, preview, rung_lengths
from trial_runtime.search.halving import Rungs, rungs_of_budget, rungs_of_trials


@pytest.mark.parametrize(
    "fields, expected",
    [
        ({"length": 100, "max_trials": 16}, [(3, 12, 8), (2, 4, 8)]),
        ({"length": 1000, "max_trials": 64}, [(4, 45, 6), (3, 14, 5), (2, 5, 5)]),
        ({"length": 1000, "max_trials": 500}, [(5, 354, 6), (4, 110, 5), (3, 36, 5)]),
        ({"length": 1000, "max_trials": 64, "mode": "aggressive"}, [(4, 64, 16)]),
        (
            {"length": 1000, "max_trials": 64, "mode": "conservative"},
            [(4, 43, 4), (3, 14, 4), (2, 5, 4), (1, 2, 4)],
        ),
        (
            {"length": 1000, "max_trials": 1000, "mode": "conservative", "concurrency": 0},
            [(5, 680, 13), (4, 211, 13), (3, 70, 13), (2, 26, 13), (1, 13, 13)],
        ),
        (
            {"length": 243, "max_trials": 243, "divisor": 3, "max_rungs": 9},
            [(6, 150, 4), (5, 59, 4), (4, 24, 4), (3, 10, 4)],
        ),
        ({"length": 900, "max_trials": 30, "bracket_rungs": [2, 3], "concurrency": 0}, [(3, 22, 8), (2, 8, 8)]),
        ({"length": 5, "max_trials": 10, "concurrency": 1}, [(2, 7, 1), (1, 3, 1)]),
        ({"length": 100, "max_trials": 10, "concurrency": 2}, [(2, 7, 1), (1, 3, 1)]),
        (
            {"length": 1000, "max_trials": 10, "divisor": 3, "mode": "conservative", "concurrency": 5},
            [(3, 7, 2), (2, 2, 2), (1, 1, 1)],
        ),
        (
            {"length": 10**6, "max_trials": 20, "divisor": 3, "bracket_rungs": [1, 2, 3]},
            [(3, 12, 6), (2, 5, 5), (1, 3, 5)],
        ),
        (
            {"length": 10**6, "max_trials": 50, "divisor": 3, "bracket_rungs": [3, 4]},
            [(4, 35, 8), (3, 15, 8)],
        ),
        (
            {"length": 10**6, "max_trials": 50, "bracket_rungs": [3, 2], "concurrency": 0},
            [(3, 37, 13), (2, 13, 13)],
        ),
        (
            {"length": 10**6, "max_trials": 100, "bracket_rungs": [4, 3, 2], "concurrency": 11},
            [(4, 70, 4), (3, 22, 4), (2, 8, 3)],
        ),
    ],
)
def test_brackets_of_adaptive_asha(fields: dict[str, Any], expected: list[tuple[int, int, int]]) -> None:
    made = adaptive_brackets(**{"concurrency": 16, **fields})
    assert [(len(bracket.lengths), bracket.max_trials, bracket.concurrency) for bracket in made] == expected


@pytest.mark.parametrize(
    "rungs, length, divisor, lengths",
    [
        (3, 9, 3, (1, 3, 9)),
        (4, 10, 2, (1, 2, 5, 10)),
        (1, 9, 3, (9,)),
        (3, 900, 3, (100, 300, 900)),
        (5, 1000, 4, (3, 15, 62, 250, 1000)),
        (2, 5, 4, (1, 5)),
    ],
)
def test_rung_lengths(rungs: int, length: int, divisor: float, lengths: tuple[int, ...]) -> None:
    assert rung_lengths(length, rungs, divisor) == lengths


def test_one_bracket_takes_as_many_as_its_lowest_rung_promotes_from() -> None:
    assert asha_bracket(9000, 3, 12, 0, 3).concurrency == 9
    assert asha_bracket(9000, 3, 5, 0, 3).concurrency == 5
    assert asha_bracket(9000, 3, 12, 4, 3).concurrency == 4


def test_preview_counts_where_trials_end() -> None:
    (bracket,) = adaptive_brackets(900, 10, 16, divisor=3, mode="aggressive", max_rungs=10)
    assert list(preview(bracket, 3)) == [(100, 7), (300, 2), (900, 1)]


def test_rungs_of_the_synchronous_searches() -> None:
    assert rungs_of_trials(32, 3, 4, 16) == Rungs((2, 8, 32), (16, 4, 1))
    assert rungs_of_budget(800, 5, 4, 4800) == Rungs((3, 12, 50, 200, 800), (389, 97, 24, 6, 1))
