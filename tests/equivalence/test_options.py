"""Offload and an optimizer in the config keep the numbers; precision changes them as it should."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from ds_migrate.files.discovery import discover
from ds_migrate.files.writer import apply
from ds_migrate.options import Options
from ds_migrate.pipeline import migrate
from ds_verify.compare import compare, table
from ds_verify.record import Record

from equivalence.runs import Runs
from equivalence.scenario import Case

pytestmark = pytest.mark.timeout(900)

# Fixture, ranks (and micro-batches in a step), stage, options: each option is met with one rank and with two.
EXACT = {
    "offload": ("guide", 1, 1, Options(offload="optimizer")),
    "offload-untested": ("mnist_legacy", 2, 1, Options(offload="optimizer")),
    "offload-stage-2": ("guide", 2, 2, Options(zero=2, offload="optimizer")),
    "offload-parameters": ("guide", 2, 3, Options(zero=3, offload="parameters")),
    "config-adam": ("guide", 2, 1, Options(optimizer_in_config=True)),
    "config-adam-unsharded": ("guide", 1, 0, Options(zero=0, optimizer_in_config=True)),
    "config-adadelta": ("mnist_legacy", 2, 1, Options(optimizer_in_config=True)),
    "config-adam-offload": ("guide", 1, 1, Options(offload="optimizer", optimizer_in_config=True)),
}
LOWER = {
    "bf16": ("guide", 2, 1, Options(precision="bf16")),
    "autocast": ("guide", 1, 1, Options(precision="autocast")),
}


@pytest.fixture(scope="session")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every fixture of the tables, converted with its options."""
    folder = tmp_path_factory.mktemp("options")
    for name, (fixture, _, _, options) in {**EXACT, **LOWER}.items():
        shutil.copytree(Case(fixture, 1, 1).reference.folder, folder / name)
        apply(migrate(discover([str(folder / name)]), options), folder)
    return folder


def sides(runs: Runs, converted: Path, name: str) -> tuple[Record, Record]:
    fixture, ranks, stage, _ = {**EXACT, **LOWER}[name]
    case = Case(fixture, ranks, ranks, stage, resumed=False)
    return runs.get(case.reference), runs.get(case.candidate.of(converted / name))


@pytest.mark.parametrize("name", EXACT)
def test_the_numbers_stay(name: str, runs: Runs, converted: Path) -> None:
    options = EXACT[name][3]
    config = json.loads((converted / name / "ds_config.json").read_text())
    assert ("optimizer" in config) == options.optimizer_in_config
    assert ("offload_optimizer" in config["zero_optimization"]) == (options.offload != "none")

    differences = compare(*sides(runs, converted, name))

    assert not differences, table(differences)


def metrics_of(record: Record) -> Record:
    return Record(
        {key: value for key, value in record.values.items() if key.kind in ("training", "window", "validation")}
    )


@pytest.mark.parametrize("name", LOWER)
def test_lower_precision_trains_nearly_the_same(name: str, runs: Runs, converted: Path) -> None:
    reference, lower = map(metrics_of, sides(runs, converted, name))

    assert compare(reference, lower), "it computed in float32"
    assert not compare(reference, lower, tolerance=0.03)
