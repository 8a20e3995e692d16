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

from equivalence.launch import Runs
from equivalence.scenario import Case, Scenario

pytestmark = pytest.mark.timeout(900)

EXACT = {
    "offload": ("guide", 1, Options(offload="optimizer")),
    "offload-untested": ("mnist_legacy", 1, Options(offload="optimizer")),
    "offload-stage-2": ("guide", 2, Options(zero=2, offload="optimizer")),
    "offload-parameters": ("guide", 3, Options(zero=3, offload="parameters")),
    "config-adam": ("guide", 1, Options(optimizer_in_config=True)),
    "config-adam-unsharded": ("guide", 0, Options(zero=0, optimizer_in_config=True)),
    "config-adadelta": ("mnist_legacy", 1, Options(optimizer_in_config=True)),
    "config-adam-offload": ("guide", 1, Options(offload="optimizer", optimizer_in_config=True)),
}
LOWER = {
    "bf16": ("guide", 1, Options(precision="bf16")),
    "autocast": ("guide", 1, Options(precision="autocast")),
}
LAYOUTS = [(1, 1), (2, 2)]  # ranks, accumulation


class Trained:
    """Every fixture converted with every set of options, and the runs of both sides."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, (fixture, _, options) in {**EXACT, **LOWER}.items():
            shutil.copytree(Case(fixture, 1, 1).reference.folder, folder / name)
            apply(migrate(discover([str(folder / name)]), options), folder)
        cases = [self.case(name, *layout) for name in {**EXACT, **LOWER} for layout in LAYOUTS]
        planned = [side for case, candidate in cases for side in (case.reference, candidate)]
        self.runs = Runs(folder / "runs", planned)

    def case(self, name: str, ranks: int, accumulation: int) -> tuple[Case, Scenario]:
        fixture, stage, _ = {**EXACT, **LOWER}[name]
        case = Case(fixture, ranks, accumulation, stage, resumed=False)
        return case, case.candidate.of(self.folder / name)

    def sides(self, name: str, ranks: int, accumulation: int) -> tuple[Record, Record]:
        case, candidate = self.case(name, ranks, accumulation)
        return self.runs.get(case.reference), self.runs.get(candidate)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("options"))


def metrics_of(record: Record) -> Record:
    """Without parameters, of which ZeRO stage 3 leaves nothing to look at."""
    return Record({key: value for key, value in record.values.items() if key.kind != "state"})


@pytest.mark.parametrize("layout", LAYOUTS, ids=["1rank", "2ranks-accumulate"])
@pytest.mark.parametrize("name", EXACT)
def test_the_numbers_stay(name: str, layout: tuple[int, int], trained: Trained) -> None:
    _, stage, options = EXACT[name]
    config = json.loads((trained.folder / name / "ds_config.json").read_text())
    assert ("optimizer" in config) == options.optimizer_in_config
    assert ("offload_optimizer" in config["zero_optimization"]) == (options.offload != "none")

    sides = trained.sides(name, *layout)
    differences = compare(*map(metrics_of, sides)) if stage == 3 else compare(*sides)

    assert not differences, table(differences)


@pytest.mark.parametrize("layout", LAYOUTS, ids=["1rank", "2ranks-accumulate"])
@pytest.mark.parametrize("name", LOWER)
def test_lower_precision_trains_nearly_the_same(name: str, layout: tuple[int, int], trained: Trained) -> None:
    reference, lower = map(metrics_of, trained.sides(name, *layout))

    assert compare(reference, lower), "it computed in float32"
    assert not compare(reference, lower, tolerance=0.03)
