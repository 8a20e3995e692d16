"""The harness can fail: a conversion with one deliberate fault is caught, with the right first step."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from ds_verify.compare import compare, table

from equivalence.launch import Runs
from equivalence.scenario import Case, Scenario


@dataclass(frozen=True)
class Fault:
    """Text of a converted fixture and what a wrong tool would have written; where the two sides part first."""

    name: str
    fixture: str
    file: str
    right: str
    wrong: str
    first: str  # a metric
    step: int  # micro-batches, from 1

    def __str__(self) -> str:
        return self.name


pytestmark = pytest.mark.timeout(900)

FAULTS = [
    Fault(
        "learning_rate_changed", "guide", "model_def.py",
        "lr=self.args.learning_rate", "lr=1.001 * self.args.learning_rate", "training loss", 2,
    ),
    # The first step of AdamW does not depend on how long the gradient is.
    Fault(
        "clipping_forgotten", "schedule_clip_reducers", "model_def.py",
        '"gradient_clipping": self.clip', '"gradient_clipping": 0.0', "training loss", 3,
    ),
    # The discriminator moves on the generator's loss, before it has met a single real point.
    Fault(
        "engines_swapped", "gan", "model_def.py",
        "self.engine_g.step()", "self.engine_d.step()", "training d_loss_real", 1,
    ),
]  # fmt: skip


def converted_with(fault: Fault, case: Case, folder: Path) -> Scenario:
    """The case's converted run, from a copy of its sources that holds the fault."""
    shutil.copytree(case.candidate.folder, folder)
    source = (folder / fault.file).read_text()
    assert source.count(fault.right) == 1
    (folder / fault.file).write_text(source.replace(fault.right, fault.wrong))
    return case.candidate.of(folder)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_wrong_conversion_is_caught_where_it_begins(fault: Fault, runs: Runs, tmp_path: Path) -> None:
    case = Case(fault.fixture, ranks=1, accumulation=1, zero=0, resumed=False)
    wrong = converted_with(fault, case, tmp_path / fault.name)

    differences = compare(runs.get(case.reference), runs.get(wrong))

    assert differences, "the fault went unseen"
    assert (str(differences[0].key), differences[0].key.step) == (fault.first, fault.step), table(differences)


def test_a_fault_that_one_rank_never_shows_is_caught_on_two(runs: Runs, tmp_path: Path) -> None:
    fault = Fault(
        "whole_batch_on_each_rank", "mnist_script", "train.py",
        'hparams["global_batch_size"] // self.context.distributed.get_size()', 'hparams["global_batch_size"]',
        "training loss", 1,
    )  # fmt: skip
    single, double = (Case(fault.fixture, ranks, accumulation=1, zero=0, resumed=False) for ranks in (1, 2))
    wrong = converted_with(fault, single, tmp_path / fault.name)

    assert compare(runs.get(single.reference), runs.get(wrong)) == []
    differences = compare(runs.get(double.reference), runs.get(replace(wrong, ranks=2)))

    assert differences, "the fault went unseen"
    assert (str(differences[0].key), differences[0].key.step) == (fault.first, fault.step), table(differences)
