"""The proof can fail: conversions that are wrong on purpose, each of a kind that trains without an error, are caught.

The verdict names where they begin. Each original, and its control, is trained once for all faults of its fixture.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from ds_verify.job import Job
from ds_verify.runs import Round, Settings, make_job
from ds_verify.select_trial import select_trial
from ds_verify.verdict import headline, outcome
from fixture_folders import FIXTURES

from equivalence.runs import Runs

STEPS = 12

pytestmark = pytest.mark.timeout(600)


@dataclass(frozen=True)
class Fault:
    """What a wrong tool would have written into a converted fixture, and where the two sides part first.

    both: text that is replaced in the original as well, where the fixture lacks what the fault is about.
    """

    name: str
    fixture: str
    changes: tuple[tuple[str, str, str], ...]  # file, right, wrong
    first: str
    config: str = "const.yaml"
    needs_two_ranks: bool = False
    both: tuple[tuple[str, str, str], ...] = field(default=())

    def __str__(self) -> str:
        return self.name


CLIPPED = "schedule_clip_reducers"
FAULTS = [
    Fault(
        "gradient_clipping_missing", CLIPPED,
        (("model_def.py", '"gradient_clipping": self.clip', '"gradient_clipping": 0.0'),),
        # The mean gradient of 2 ranks is short enough in the first step.
        r"batch [12]: norm of model parameters",
    ),
    Fault(
        "scheduler_in_the_engine_with_accumulation", CLIPPED,
        (
            ("model_def.py", "self.context.wrap_lr_scheduler(\n            torch.optim.lr_scheduler.ExponentialLR("
             "self.optimizer, 0.98),\n            LRScheduler.StepMode.STEP_EVERY_BATCH,\n            frequency=2,\n"
             "        )", "batchwise = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.98)"),
            ("model_def.py", "optimizer=self.optimizer, config=ds_config",
             "optimizer=self.optimizer, config=ds_config, lr_scheduler=batchwise"),
        ),
        # The engine moves it in its step; PyTorchTrial moves it after the batch.
        r"batch 2: training lr ",
        config="accumulate.yaml",
    ),
    Fault(
        "optimizer_in_the_config_as_Adam", "guide",
        (("model_def.py", "model=net, optimizer=optimizer, config=ds_config",
          "model=net, model_parameters=net.parameters(), config={**ds_config, 'optimizer': {'type': 'Adam', 'params': "
          "{'lr': self.args.learning_rate, 'weight_decay': 0.1, 'torch_adam': True}}}"),),
        r"batch 1: norm of model parameters",
        both=(("model_def.py", "lr=self.args.learning_rate", "lr=self.args.learning_rate, weight_decay=0.1"),),
    ),
    Fault(
        "to_device_lost", "guide",
        (("model_def.py", "self.context.to_device(next(dataloader_iter))", "next(dataloader_iter)"),),
        r"batch 1: .*NotMovedError: .* got a batch that lies on the host",
    ),
    Fault(
        "accumulation_squared", CLIPPED,
        (("accumulate.yaml", "gradient_accumulation_steps: 2", "gradient_accumulation_steps: 4"),),
        r"before the first batch: setup micro-batches in an optimizer step .*2 became 4",
        config="accumulate.yaml",
    ),
    Fault(
        "engines_swapped", "gan",
        (("model_def.py", "self.engine_g.step()", "self.engine_d.step()"),),
        r"batch 1: ",
    ),
    Fault(
        "second_engine_not_reduced", "gan",
        (("model_def.py", "self.engine_d = self.context.wrap_model_engine(engine)",
          "self.engine_d = self.context.wrap_model_engine(engine)\n"
          "        self.engine_d.allreduce_gradients = lambda *args, **kwargs: None"),),
        r"batch 1: norm of (discriminator|engine_d) parameters( on rank 1)? ",
        needs_two_ranks=True,
    ),
    Fault(
        "model_left_in_train_mode", "gan",
        (("model_def.py", "    def evaluate_batch(self, dataloader_iter: Iterator[det_torch.TorchData], "
          "batch_idx: int) -> Dict[str, Any]:\n", "    def evaluate_batch(self, dataloader_iter, batch_idx):\n"
          "        self.discriminator.train()\n"),),
        r"batch 3: validation ",
    ),
    Fault(
        "buffers_not_restored", "gan",
        (("model_def.py", "        # Initialize the optimizers.\n",
          "        for module in self.generator.modules():\n"
          "            module._non_persistent_buffers_set.update(module._buffers)\n"),),
        r"batch 7: norm of (generator|engine_g) buffers",
    ),
    Fault(
        "learning_rate_changed", "guide",
        (("model_def.py", "lr=self.args.learning_rate", "lr=1.001 * self.args.learning_rate"),),
        r"batch 1: learning rates",
    ),
    Fault(
        "whole_batch_on_each_rank", "mnist_script",
        (("train.py", 'hparams["global_batch_size"] // self.context.distributed.get_size()',
          'hparams["global_batch_size"]'),),
        r"batch 1: training loss ",
        needs_two_ranks=True,
    ),
]  # fmt: skip


def copied(source: Path, folder: Path, changes: tuple[tuple[str, str, str], ...]) -> Path:
    shutil.copytree(source, folder)
    for name, right, wrong in changes:
        text = (folder / name).read_text()
        assert right in text, f"{name} has no {right!r}"
        (folder / name).write_text(text.replace(right, wrong))
    return folder


def verdict(fault: Fault, runs: Runs, folder: Path, ranks: int) -> str:
    """Return what ds-verify reports of the conversion that holds the fault."""

    def job(name: str, source: Path) -> Job:
        selection = select_trial(source, Path(fault.config))
        made = make_job(f"{name}-{ranks}ranks", selection, source, folder / f"{name}-{ranks}", ranks)
        return replace(made, steps=STEPS)

    fixture = FIXTURES / fault.fixture
    before = folder / "before"
    if not before.exists():
        copied(fixture / "before", before, fault.both)
        copied(fixture / "after", folder / "after", fault.both + fault.changes)
    title = f"{fault.fixture}-{Path(fault.config).stem}-{f'as-{fault}' if fault.both else 'as-is'}"
    original = job(f"faults-{title}", before)
    trained = [
        runs.training(original),
        runs.training(replace(original, name=f"{original.name}-control", nudge=True)),
        runs.training(replace(job(f"fault-{fault}", folder / "after"), host_batches=True)),
    ]
    assert trained[0].failure is None, trained[0].failure
    return headline([outcome(Round(ranks, trained[0], trained[1], trained[2], Settings(STEPS, (ranks,))))], STEPS)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_wrong_conversion_is_caught_where_it_begins(fault: Fault, runs: Runs, tmp_path: Path) -> None:
    ranks = 2 if fault.needs_two_ranks else 1
    found = verdict(fault, runs, tmp_path, ranks)
    label = "1 rank" if ranks == 1 else f"{ranks} ranks"
    assert re.match(f"different: with {label} from {fault.first}", found), found


@pytest.mark.parametrize("name", ["second_engine_not_reduced", "whole_batch_on_each_rank"])
def test_faults_that_one_rank_never_shows(name: str, runs: Runs, tmp_path: Path) -> None:
    """The reason why two ranks are the default."""
    (fault,) = (fault for fault in FAULTS if fault.name == name)
    assert verdict(fault, runs, tmp_path, ranks=1).startswith("same: 12 batches with 1 rank (")
