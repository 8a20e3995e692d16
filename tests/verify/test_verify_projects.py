"""``ds-verify`` on what real projects hold: CUDA by name, lengths that are read, one rank only, no resuming."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ds_verify
import jsonschema
import pytest
from ds_verify.cli import main
from ds_verify.exit_codes import DIFFERENT, NOT_RUN, SAME
from ds_verify.failure import Failure
from ds_verify.job import Job, JobRunner

pytestmark = pytest.mark.timeout(300)

CONFIG = """
name: project
entrypoint: model_def:Reader
hyperparameters: {global_batch_size: 8, lr: 0.01}
searcher: {name: single, metric: validation_loss, max_length: {batches: 40}}
"""

TRIAL = """
import torch
from determined.pytorch import DataLoader, LRScheduler, PyTorchCallback, PyTorchTrial
from torch import nn


class State(PyTorchCallback):
    def load_state_dict(self, state):
        raise_here = 0


class Reader(PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = self.context.wrap_model(nn.Linear(4, 2).to(device))
        self.opt = self.context.wrap_optimizer(torch.optim.Adam(self.model.parameters(), lr=context.get_hparam("lr")))
        total = self.context.get_experiment_config()["searcher"]["max_length"]["batches"]
        assert total == 40, f"max_length is {total}"
        self.context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.LambdaLR(self.opt, lambda step: 1 - step / total),
            LRScheduler.StepMode.STEP_EVERY_BATCH,
        )

    def build_callbacks(self):
        return {"state": State()}

    def loader(self):
        made = torch.Generator().manual_seed(0)
        x = torch.randn(40, 4, generator=made)
        data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
        return DataLoader(data, batch_size=self.context.get_per_slot_batch_size())

    def build_training_data_loader(self):
        return self.loader()

    def build_validation_data_loader(self):
        return self.loader()

    def train_batch(self, batch, epoch_idx, batch_idx):
        inputs, labels = self.context.to_device(batch)
        outputs = self.model(inputs)
        loss = nn.functional.cross_entropy(outputs, labels)
        self.context.backward(loss)
        self.context.step_optimizer(self.opt)
        return {"loss": loss, "accuracy": (outputs.argmax(1) == labels).float().mean()}

    def evaluate_batch(self, batch):
        inputs, labels = self.context.to_device(batch)
        return {"validation_loss": nn.functional.cross_entropy(self.model(inputs), labels)}
"""


WITHOUT = "--no-resume compares without that"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "const.yaml").write_text(CONFIG)
    (folder / "model_def.py").write_text(TRIAL.replace(".to(device)", ""))
    return folder


def change(path: Path, text: str, other: str) -> None:
    assert text in path.read_text()
    path.write_text(path.read_text().replace(text, other))


def verify(project: Path, *options: str) -> int:
    return main([str(project), "--steps", "4", "--device", "cpu", "--no-report", *options])


def test_cuda_by_name_and_a_length_that_the_trial_reads(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lengths in the config are those of the user's run, also where the conversion divides them."""
    source = project / "model_def.py"
    change(source, "nn.Linear(4, 2)", "nn.Linear(4, 2).cuda()")
    change(source, "self.context.to_device(batch)", "(part.cuda(non_blocking=True) for part in batch)")
    with source.open("a") as stream:
        stream.write("\n\nclass Another(Reader):\n    pass\n")
    (project / "const.yaml").write_text(CONFIG + "optimizations: {aggregation_frequency: 2}\n")
    code = main([str(project), "--steps", "4", "--device", "cpu", "--ranks", "1", "--report", "page.html"])
    printed = capsys.readouterr()
    assert code == SAME, printed.out
    assert "what the code sends to CUDA stays on the CPU, on both sides" in Path("page.html").read_text()
    assert "what the code sends to CUDA stays on the CPU, on both sides" in printed.out
    assert "run 1 of 3: original, 1 rank" in printed.err
    assert "not verified: Another (--trial or --config)" in printed.out


@pytest.mark.parametrize(("slots", "code"), [(1, SAME), (2, NOT_RUN)])
def test_an_original_that_two_ranks_cannot_train(
    slots: int, code: int, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = CONFIG.replace("global_batch_size: 8", "global_batch_size: 1")
    (project / "const.yaml").write_text(f"{text}resources: {{slots_per_trial: {slots}}}\n")
    assert verify(project) == code
    printed = capsys.readouterr().out
    verdict = printed.splitlines()[-1]
    assert verdict.startswith("same: 4 batches with 1 rank (bitwise); 2 ranks: the original itself does not train (")
    assert "global_batch_size" in verdict


def test_a_run_that_cannot_be_resumed_is_compared_without_that(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(project / "model_def.py", "raise_here = 0", 'raise ValueError("no state for me")')
    assert verify(project, "--ranks", "1") == NOT_RUN
    printed = capsys.readouterr().out
    first, second, *_ = printed.splitlines()
    assert first == f"the original does not train with 1 rank once it is resumed after 2 batches ({WITHOUT}):"
    assert second == "Traceback (most recent call last):" and 'File "model_def.py"' in printed
    assert "ValueError: no state for me" in printed.splitlines()[-1]
    assert verify(project, "--ranks", "1", "--no-resume") == SAME


def test_a_conversion_that_raises_is_reported_with_the_users_own_traceback(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = project / "model_def.py"
    change(
        source,
        'return {"loss"',
        'assert type(self).__mro__[1].__name__ == "PyTorchTrial", "no"\n        return {"loss"',
    )
    assert verify(project, "--ranks", "1") == DIFFERENT
    first, second, third, *_ = capsys.readouterr().out.splitlines()
    assert first == "the converted trial does not train with 1 rank:"
    assert second == "Traceback (most recent call last):"
    assert third.startswith('  File "model_def.py", line ') and third.endswith(", in train_batch")


def test_each_run_has_its_own_directory(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[Job] = []

    def keep(_: JobRunner, given: Sequence[Job], *_args: object, **_options: object) -> dict[str, Failure]:
        jobs.extend(given)
        return {job.name: Failure(0, "not run") for job in given}

    monkeypatch.setattr(JobRunner, "run", keep)
    verify(project, "--ranks", "1")
    assert len(jobs) == 3
    assert all(f"/runs/{job.name}" in json.dumps(job.info) for job in jobs)


SECOND = """

class Second(Reader):
    def train_batch(self, batch, epoch_idx, batch_idx):
        self.context.backward(self.model(batch[0]).sum(), create_graph=True)
        self.context.step_optimizer(self.opt)
        return {}
"""


@pytest.mark.parametrize(("entrypoint", "name"), [("model_def:Second", "Second"), ("python3 train.py", "")])
def test_a_trial_that_stays_as_it_is_while_another_is_converted_is_not_the_same(
    entrypoint: str, name: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "second.py").write_text((TRIAL.replace(".to(device)", "") + SECOND).replace("Reader", "Base"))
    (project / "train.py").write_text(
        "from determined import pytorch\nfrom second import Second\n"
        "with pytorch.init() as context:\n    pytorch.Trainer(Second(context), context).fit()\n"
    )
    (project / "const.yaml").write_text(CONFIG.replace("model_def:Reader", entrypoint.replace("model_def", "second")))
    code = verify(project, "--ranks", "1")
    printed = capsys.readouterr()
    if name:
        assert code == NOT_RUN, printed.out
        assert "ds-migrate does not convert Second:\n    second.py:" in printed.err and "create_graph" in printed.err
    else:
        assert code == DIFFERENT, printed.out
        assert "the converted side still trains a PyTorchTrial" in printed.out.splitlines()[-1]


def test_an_original_whose_ranks_wait_for_each_other(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ds_verify.job.HANG", 3.0)
    source = project / "model_def.py"
    change(source, "import torch\n", "import time\nimport torch\n")
    change(source, "        outputs =", "        if batch_idx and self.context.distributed.rank:\n"
           "            time.sleep(1000)\n        outputs =")  # fmt: skip
    assert verify(project, "--ranks", "2", "--no-resume", "--format", "json") == NOT_RUN
    found = document(capsys.readouterr().out)
    assert found["verdict"] == "not_run" and found["comparisons"] == []
    reason = found["original_failure"]["reason"]
    assert "nothing has moved for 3 s: rank 0 waits for rank 1 in " in reason
    assert "rank 1 is in train_batch (model_def.py:" in reason


LOADERS = """

class Reader(BaseTrial):
    def build_training_data_loader(self):
        return self.loader()

    def build_validation_data_loader(self):
        return self.loader()

    def train_batch(self, batch, epoch_idx, batch_idx):
        return super().train_batch(batch, epoch_idx, batch_idx)
"""


def test_a_base_class_of_another_package_is_followed(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = project.parent / "packages" / "company"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (project / "model_def.py").rename(package / "base.py")
    change(package / "base.py", "class Reader", "class BaseTrial")
    (project / "model_def.py").write_text(
        "from company.base import BaseTrial\n\n\nclass Reader(BaseTrial):\n    pass\n"
    )
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))

    assert verify(project, "--ranks", "1", "--no-resume", "--format", "json") == NOT_RUN
    headline = document(capsys.readouterr().out)["headline"]
    assert "holds neither a PyTorchTrial" in headline
    assert verify(project, "--ranks", "1", "--no-resume", "--format", "json", "--follow", "company") == SAME
    found = document(capsys.readouterr().out)
    assert (found["verdict"], found["exit_code"], found["batches"], found["trial"]) == (
        "same",
        0,
        4,
        "model_def:Reader",
    )
    assert [(each["ranks"], each["same"], each["largest_gap"]) for each in found["comparisons"]] == [(1, True, 0.0)]
    assert found["next"] == ["ds-migrate", "--write", "--follow=company", os.path.relpath(project)]


def document(text: str) -> dict[str, Any]:
    """Return the JSON document that was printed; it keeps its schema."""
    found: dict[str, Any] = json.loads(text)
    schema = json.loads(Path(ds_verify.__file__).with_name("schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(found)
    return found
