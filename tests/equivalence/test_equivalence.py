"""Every fixture gives the same numbers on Determined, on the runtime, and converted."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from ds_verify.compare import Difference, compare, table
from ds_verify.record import Record

from equivalence.launch import Runs
from equivalence.scenario import NAMES, Case

ORIGINAL = [
    Case(name, ranks, accumulation, resumed=resumed)
    for name, ranks, accumulation, resumed in itertools.product(NAMES, (1, 2), (1, 2), (False, True))
]
CONVERTED = [
    Case(name, ranks, accumulation, zero)
    for name, ranks, zero, accumulation in itertools.product(NAMES, (1, 2), (0, 1), (1, 2))
]


# The first test of a session waits for all runs of its kind.
pytestmark = pytest.mark.timeout(900)


def report(differences: list[Difference], between: str) -> str:
    return f"{len(differences)} values differ between {between}\n{table(differences)}"


def assert_trained(record: Record) -> None:
    """A comparison of nothing, or of runs that never moved, would prove nothing."""
    kinds = {key.kind for key in record.values}
    assert kinds == {"training", "window", "validation", "state"}
    losses = [float(value) for key, value in record.values.items() if key.kind == "training" and key.name == "loss"]
    assert len(set(losses)) > 10


@pytest.mark.parametrize("case", ORIGINAL, ids=str)
def test_the_runtime_trains_the_original_as_determined_does(runs: Runs, case: Case) -> None:
    oracle, reference = runs.get(case.oracle), runs.get(case.reference)
    assert_trained(oracle)
    differences = compare(oracle, reference)
    assert not differences, report(differences, "determined and trial_runtime, both with the original")


@pytest.mark.parametrize("case", CONVERTED, ids=str)
def test_the_converted_trial_trains_as_the_original(runs: Runs, case: Case) -> None:
    oracle, reference, candidate = (runs.get(scenario) for scenario in case.scenarios)
    differences = compare(reference, candidate)
    assert not differences, report(differences, "the original and the converted trial, both on trial_runtime")
    differences = compare(oracle, candidate)
    assert not differences, report(differences, "the original on determined and the converted trial")


@pytest.mark.parametrize("case", [replace(case, resumed=False) for case in CONVERTED], ids=str)
def test_a_run_that_was_saved_and_resumed_is_the_undisturbed_one_bit_for_bit(runs: Runs, case: Case) -> None:
    undisturbed, resumed = runs.get(case.candidate), runs.get(replace(case, resumed=True).candidate)
    differences = compare(undisturbed, resumed, tolerance=0.0)
    assert not differences, report(differences, "one run and the same run saved and resumed")
