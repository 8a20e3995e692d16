"""Every fixture gives the same numbers on Determined, on the runtime, and converted."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from _pytest.mark import ParameterSet
from ds_verify.compare import Difference, compare, table
from ds_verify.record import Record
from fixture_folders import TRIALS

from equivalence.runs import Runs
from equivalence.scenario import Case

# Each fixture meets every value of every option, and each pair of values is met by several fixtures. Marked slow: each
# fixture meets each pair of values, and each combination of three is met by several. Ranks, accumulation, stage:
LAYOUTS = [[(1, 1, 0), (2, 2, 1)], [(1, 2, 1), (2, 1, 0)], [(1, 1, 1), (2, 2, 0)], [(1, 2, 0), (2, 1, 1)]]
CONVERTED_PAIRS = [Case(name, *layout) for index, name in enumerate(TRIALS) for layout in LAYOUTS[index % len(LAYOUTS)]]
ALL_PAIRS = [[(1, 1, 0), (1, 2, 1), (2, 1, 1), (2, 2, 0)], [(1, 1, 1), (1, 2, 0), (2, 1, 0), (2, 2, 1)]]
# With either stage the original is one and the same; it is resumed in the layouts of the second and the fourth row.
ORIGINAL_PAIRS = [
    Case(case.fixture, case.ranks, case.accumulation, resumed=case.ranks != case.accumulation)
    for case in CONVERTED_PAIRS
]

pytestmark = pytest.mark.timeout(600)


def parameters(pairs: Sequence[Case], others: Iterable[Case]) -> list[ParameterSet]:
    slow = [case for case in others if case not in pairs]
    return [
        *(pytest.param(case, id=str(case)) for case in pairs),
        *(pytest.param(case, marks=pytest.mark.slow, id=str(case)) for case in slow),
    ]


ORIGINAL = parameters(
    ORIGINAL_PAIRS,
    (
        Case(name, ranks, accumulation, resumed=ranks != accumulation)
        for name, ranks, accumulation in itertools.product(TRIALS, (1, 2), (1, 2))
    ),
)
CONVERTED = parameters(
    CONVERTED_PAIRS,
    (Case(name, *layout) for index, name in enumerate(TRIALS) for layout in ALL_PAIRS[index % len(ALL_PAIRS)]),
)


def report(differences: list[Difference], between: str) -> str:
    return f"{len(differences)} values differ between {between}\n{table(differences)}"


def assert_trained(record: Record) -> None:
    """A comparison of nothing, or of runs that never moved, would prove nothing."""
    kinds = {key.kind for key in record.values}
    assert kinds == {"setup", "initial", "training", "window", "lr", "norm", "validation", "state"}
    losses = [float(value) for key, value in record.values.items() if key.kind == "training" and key.name == "loss"]
    assert len(set(losses)) > 10


@pytest.mark.parametrize("case", ORIGINAL)
def test_the_runtime_trains_the_original_as_determined_does(runs: Runs, case: Case) -> None:
    oracle, reference = runs.get(case.oracle), runs.get(case.reference)
    assert_trained(oracle)
    differences = compare(oracle, reference)
    assert not differences, report(differences, "determined and trial_runtime, both with the original")


@pytest.mark.parametrize("case", CONVERTED)
def test_the_converted_trial_trains_as_the_original(runs: Runs, case: Case) -> None:
    """The converted run is saved and resumed; the original's, one way in the one layout and one way in the other."""
    resumed = case.ranks != case.accumulation  # as in ORIGINAL_PAIRS
    oracle, reference = runs.get(case.oracle), runs.get(replace(case, resumed=resumed).reference)
    candidate = runs.get(case.candidate)
    differences = compare(reference, candidate)
    assert not differences, report(differences, "the original and the converted trial, both on trial_runtime")
    differences = compare(oracle, candidate)
    assert not differences, report(differences, "the original on determined and the converted trial")


@pytest.mark.parametrize("case", CONVERTED)
def test_a_run_that_was_saved_and_resumed_is_the_undisturbed_one_bit_for_bit(runs: Runs, case: Case) -> None:
    undisturbed, resumed = runs.get(replace(case, resumed=False).candidate), runs.get(case.candidate)
    differences = compare(undisturbed, resumed, tolerance=0.0)
    assert not differences, report(differences, "one run and the same run saved and resumed")
