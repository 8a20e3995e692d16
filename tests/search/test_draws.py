"""The draws of a search, against values of Determined's master and of its generator."""

from __future__ import annotations

import math
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trial_runtime.search import go_math
from trial_runtime.search.draws import draw_trials
from trial_runtime.search.space import grid_points, grid_size, to_json_numbers

SPACES: dict[str, Any] = {
    "dropout": {"type": "double", "minval": 0.2, "maxval": 0.8},
    "layers": {"type": "int", "minval": 1, "maxval": 4},
    "lr": {"type": "log", "base": 10, "minval": -4, "maxval": -1},
    "opt": {"type": "categorical", "vals": ["sgd", "adam", "rmsprop"]},
    "global_batch_size": 64,
}


@pytest.mark.parametrize(
    "seed, request_id, trial_seed",
    [
        (0, "ac0a7f8c-2faa-4497-b5a6-16b7c0cc21d8", 441365315),
        (1, "25f4c16a-eb80-47ff-8c2f-67b84814bcee", 491263),
        (42, "66dce15f-b33d-4acb-9c03-62f30e95f52e", 996406378),
        (1337, "970c1443-bde0-4e8f-9c83-9f28e8246c36", 1194544295),
        (4294967295, "a369fe18-2241-421c-8cec-91e947ac0c90", 1241397172),
    ],
)
def test_first_trial_has_the_masters_id_and_seed(seed: int, request_id: str, trial_seed: int) -> None:
    first = next(draw_trials(seed, {}))
    assert (first.request_id, first.seed) == (request_id, trial_seed)


def test_second_trial_continues_the_stream() -> None:
    second = list(islice(draw_trials(42, {}), 2))[1]
    assert (second.request_id, second.seed) == ("47d499c7-bcae-4199-942c-cb9866d6f027", 1914837113)


def test_every_kind_of_space_is_drawn_as_the_master_does() -> None:
    drawn = list(islice(draw_trials(42, SPACES), 3))
    assert drawn[0].request_id == "142ccb98-66d6-4027-b918-2272d241ef27"
    assert [trial.seed for trial in drawn] == [429389014, 1427830251, 30349564]
    assert [trial.hparams["dropout"] for trial in drawn] == [
        0.42472407130841755,
        0.23485016730091968,
        0.7631316254094502,
    ]
    assert [trial.hparams["lr"] for trial in drawn] == [
        0.00035506214270707696,
        0.0010025956902289567,
        0.00035113563139704037,
    ]
    assert [(trial.hparams["layers"], trial.hparams["opt"]) for trial in drawn] == [
        (1, "sgd"),
        (4, "rmsprop"),
        (2, "sgd"),
    ]


def test_integers_include_both_bounds() -> None:
    drawn = islice(draw_trials(102932948, {"x": {"type": "int", "minval": 0, "maxval": 10}}), 10)
    assert [trial.hparams["x"] for trial in drawn] == [8, 8, 10, 4, 7, 8, 6, 8, 10, 10]


def test_grid_is_taken_from_its_end_and_ends() -> None:
    drawn = list(draw_trials(7, {"x": {"type": "int", "minval": 0, "maxval": 4, "count": 5}}, grid=True))
    assert [trial.hparams["x"] for trial in drawn] == [4, 3, 2, 1, 0]
    assert [trial.seed for trial in drawn[:3]] == [1882953283, 1322904761, 309457262]


@pytest.mark.parametrize(
    "space, points",
    [
        ({"type": "int", "minval": 0, "maxval": 20, "count": 3}, [0, 10, 20]),
        ({"type": "int", "minval": 0, "maxval": 5, "count": 3}, [0, 3, 5]),
        ({"type": "int", "minval": -5, "maxval": 0, "count": 3}, [-5, -3, 0]),
        ({"type": "int", "minval": 0, "maxval": 10, "count": 4}, [0, 3, 7, 10]),
        ({"type": "int", "minval": 0, "maxval": 4, "count": 100}, [0, 1, 2, 3, 4]),
        ({"type": "int", "minval": 0, "maxval": 5, "count": 1}, [3]),
        ({"type": "double", "minval": 0.1, "maxval": 0.5, "count": 3}, [0.1, 0.30000000000000004, 0.5]),
        ({"type": "log", "base": 10, "minval": -5, "maxval": -3, "count": 3}, [1e-05, 0.0001, 0.001]),
        ({"type": "categorical", "vals": ["b", "a"]}, ["b", "a"]),
        ({"type": "const", "val": 7}, [7]),
        ("a constant", ["a constant"]),
    ],
)
def test_axis_of_the_grid(space: Any, points: list[Any]) -> None:
    assert [point["x"] for point in grid_points({"x": space})] == points
    assert grid_size({"x": space}) == len(points)


def test_last_name_of_the_grid_changes_fastest_and_groups_take_part() -> None:
    two, three = {"type": "categorical", "vals": [1, 2]}, {"type": "categorical", "vals": ["a", "b", "c"]}
    tree = {"b": three, "a": {"inner": two}}
    points = [(point["a"]["inner"], point["b"]) for point in grid_points(tree)]
    assert points == [(1, "a"), (1, "b"), (1, "c"), (2, "a"), (2, "b"), (2, "c")]
    assert grid_size(tree) == 6


def test_integral_floats_arrive_as_ints_as_go_writes_them() -> None:
    value = {"b": 1.0, "a": [13.0, 0.5, True, None, "1.0"], "big": 1e21}
    converted = to_json_numbers(value)
    assert converted == {"a": [13, 0.5, True, None, "1.0"], "b": 1, "big": 1e21}
    assert list(converted) == ["a", "b", "big"] and isinstance(converted["b"], int) and converted["a"][2] is True
    assert isinstance(converted["big"], float)


@pytest.mark.parametrize("count, base, quotient", [(243, 3, 5.0), (1000, 10, 2.9999999999999996), (64, 4, 3.0)])
def test_logarithms_are_gos(count: int, base: int, quotient: float) -> None:
    assert go_math.log(count) / go_math.log(base) == quotient


@given(st.sampled_from([2.0, 10.0]), st.floats(-9, 4))
def test_powers_are_within_four_units_of_pythons(base: float, exponent: float) -> None:
    expected = base**exponent
    assert abs(go_math.pow(base, exponent) - expected) <= 4 * math.ulp(expected)


@given(st.sampled_from([2.0, 10.0, 3.0]), st.integers(-15, 15))
def test_whole_powers_of_two_are_exact_and_of_others_close(base: float, exponent: int) -> None:
    expected = base**exponent
    assert abs(go_math.pow(base, float(exponent)) - expected) <= (0 if base == 2 else 4 * math.ulp(expected))


def test_seed_outside_of_32_bits_is_refused() -> None:
    with pytest.raises(ValueError, match="from 0 to 4294967295, not -1"):
        next(draw_trials(-1, {}))
