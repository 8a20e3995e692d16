"""The comparison itself: what it must see, and in which order it tells."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ds_verify.compare import compare, largest_gap, table
from ds_verify.record import Key, Kind, Record

LOSS = Key("training", 3, "loss")
WEIGHT = Key("state", 14, "model.0.weight")


def record(**values: object) -> Record:
    made = Record()
    for name, value in values.items():
        made.add({"loss": LOSS, "weight": WEIGHT}[name], value)
    return made


def test_the_same_values_have_no_difference() -> None:
    one, other = record(loss=0.5, weight=[1.0, 2.0]), record(loss=0.5, weight=[1.0, 2.0])
    assert compare(one, other) == []


def test_a_gap_above_the_tolerance_is_a_difference_and_one_below_is_not() -> None:
    assert compare(record(loss=1.0), record(loss=1.0 + 9e-7)) == []
    (difference,) = compare(record(loss=1.0), record(loss=1.0 + 2e-6))
    assert difference.key == LOSS
    assert difference.gap == pytest.approx(2e-6)


def test_the_gap_of_float32_values_is_taken_in_float64() -> None:
    one = record(weight=np.array([16777216.0], np.float32))
    other = record(weight=np.array([16777217.0], np.float64))
    assert largest_gap(one, other) == 1.0


def test_a_value_that_one_side_lacks_is_a_difference_both_ways() -> None:
    full, empty = record(loss=1.0), record()
    assert [d.reason for d in compare(full, empty)] == ["missing in the candidate"]
    assert [d.reason for d in compare(empty, full)] == ["missing in the reference"]


def test_another_shape_is_a_difference_even_where_it_would_broadcast() -> None:
    (difference,) = compare(record(weight=[1.0]), record(weight=[1.0, 1.0]))
    assert difference.reason == "shape (1,) became (2,)"


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_a_value_gone_nan_or_infinite_is_a_difference_but_not_from_itself(odd: float) -> None:
    assert compare(record(loss=odd), record(loss=odd)) == []
    (difference,) = compare(record(loss=1.0), record(loss=odd))
    assert difference.gap == float("inf")


def test_the_first_step_comes_first_however_small_its_gap() -> None:
    reference = record(loss=1.0, weight=[1.0])
    candidate = record(loss=1.1, weight=[9.0])
    assert [d.key for d in compare(reference, candidate)] == [LOSS, WEIGHT]


def test_within_a_step_causes_come_before_effects() -> None:
    one, other = Record(), Record()
    kinds: list[Kind] = ["state", "norm", "validation", "training", "lr"]
    for made, shift in ((one, 0.0), (other, 1.0)):
        for size, kind in enumerate(kinds, 1):
            made.add(Key(kind, 3, "x"), 1.0 + shift / size)
    assert [difference.key.kind for difference in compare(one, other)] == kinds[::-1]


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [(0.01, 0.0101, "0.01 became 0.0101"), (1.0, 1.00000001, "1.0 became 1.00000001"), (2, 4, "2 became 4")],
)
def test_a_change_has_as_many_digits_as_it_needs(before: float, after: float, change: str) -> None:
    (difference,) = compare(record(loss=before), record(loss=after), tolerance=0.0)
    assert difference.reason == change


def test_each_rank_is_compared_with_its_own_counterpart() -> None:
    one, other = Record(), Record()
    for made, value in ((one, 1.0), (other, 2.0)):
        made.add(WEIGHT, 1.0)
        made.add(Key("state", 14, "model.0.weight", rank=1), value)
    (difference,) = compare(one, other)
    assert str(difference.key) == "state model.0.weight on rank 1"


def test_an_excluded_name_is_passed_over_and_an_unknown_one_is_an_error() -> None:
    reference, candidate = record(weight=[1.0]), record(weight=[2.0])
    assert compare(reference, candidate, excluded={"model.0.weight": "a bias before a normalisation"}) == []
    with pytest.raises(ValueError, match=r"not in the reference: model\.9\.bias"):
        compare(reference, candidate, excluded={"model.9.bias": "gone since"})


def test_the_table_names_metric_step_and_gap() -> None:
    lines = table(compare(record(loss=1.0, weight=[1.0, 1.0]), record(loss=1.5, weight=[1.0, 3.0]))).splitlines()
    assert lines[1].split() == ["3", "5.00e-01", "training", "loss:", "1", "became", "1.5"]
    assert lines[2].split()[:4] == ["14", "2.00e+00", "state", "model.0.weight:"]


def test_a_long_table_reports_how_many_lines_it_leaves_out() -> None:
    differences = compare(record(loss=1.0, weight=[1.0]), record(loss=2.0, weight=[2.0]))
    assert table(differences, limit=1).endswith("... and 1 more")


def test_a_record_survives_its_file(tmp_path: Path) -> None:
    saved = record(loss=0.1, weight=np.array([[1.0, 2.0]], np.float32))
    saved.save(tmp_path / "rank0.values")
    loaded = Record.load([tmp_path / "rank0.values"])
    assert compare(saved, loaded, tolerance=0.0) == []
    assert loaded.values[WEIGHT].dtype == np.float32


def test_a_value_recorded_twice_is_an_error() -> None:
    made = record(loss=1.0)
    with pytest.raises(ValueError, match="training loss at step 3 is recorded twice"):
        made.add(LOSS, 1.0)


def test_a_value_that_is_no_number_is_an_error() -> None:
    with pytest.raises(TypeError, match="'abc'"):
        record(loss="abc")
