"""``--follow PACKAGE`` converts a copy of a base class of another package, beside the trial that is built on it."""

from __future__ import annotations

from pathlib import Path

import examples
import pytest
from ds_migrate.cli import main
from ds_migrate.findings import FileStatus, Severity, TrialStatus
from ds_migrate.options import Options

BASE = """\
import torch
from determined.pytorch import PyTorchTrial, PyTorchTrialContext

from .losses import loss_of


class BaseTrial(PyTorchTrial):
    def __init__(self, context: PyTorchTrialContext) -> None:
        self.context = context
        self.model = self.context.wrap_model(self.make_model())
        self.optimizer = self.context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))

    def train_batch(self, batch, epoch_idx, batch_idx):
        x, y = batch
        loss = loss_of(self.model(x), y)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch):
        x, y = batch
        return {"validation_loss": loss_of(self.model(x), y)}
"""
TRIAL = """\
import torch
{imports}
from determined.pytorch import DataLoader


class MyTrial({base}):
    def make_model(self):
        return torch.nn.Linear(6, 1)

    def build_training_data_loader(self):
        return DataLoader(make_data(), batch_size=self.context.get_per_slot_batch_size())

    def build_validation_data_loader(self):
        return DataLoader(make_data(), batch_size=self.context.get_per_slot_batch_size())
"""
COPY = "company_training_base.py"
FOLLOW = Options(follow=("company",))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project beside the package that has its base class."""
    package = tmp_path / "company" / "training"
    package.mkdir(parents=True)
    (tmp_path / "company" / "__init__.py").touch()
    (package / "__init__.py").write_text("from .base import BaseTrial\n")
    (package / "base.py").write_text(BASE)
    (package / "losses.py").write_text("def loss_of(output, target):\n    return (output - target).square().mean()\n")
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


def write(project: Path, imports: str = "from company.training import BaseTrial", base: str = "BaseTrial") -> None:
    (project / "model_def.py").write_text(TRIAL.format(imports=imports, base=base))


def test_without_it_the_finding_names_the_option(project: Path) -> None:
    write(project)
    (finding,) = (finding for _, finding in examples.run(project).findings(Severity.BLOCKED))
    assert finding.help is not None and "--follow company" in finding.help


@pytest.mark.parametrize(
    ("imports", "base", "taken"),
    [
        ("from company.training import BaseTrial", "BaseTrial", "from company_training_base import BaseTrial"),
        ("from company.training.base import BaseTrial as B", "B", "from company_training_base import BaseTrial as B"),
        ("import company.training as ct", "ct.BaseTrial", "from company_training_base import BaseTrial"),
        ("from company.training import BaseTrial, other", "BaseTrial", "from company.training import other"),
    ],
)
def test_a_copy_is_converted_beside_the_trial(imports: str, base: str, taken: str, project: Path) -> None:
    write(project, imports, base)
    package = {path: path.read_bytes() for path in (project.parent / "company").rglob("*.py")}
    report = examples.run(project, options=FOLLOW)
    assert {trial.status for _, trial in report.trials()} == {TrialStatus.CONVERTED}
    files = {file.path.name: file for file in report.files}
    assert files[COPY].before is None and files[COPY].status is FileStatus.CREATED
    copy, trial = files[COPY].after, files["model_def.py"].after
    assert copy is not None and trial is not None
    assert b"from company.training.losses import loss_of" in copy and b"class BaseTrial(DeepSpeedTrial):" in copy
    assert taken in trial.decode().splitlines()
    assert {path: path.read_bytes() for path in package} == package
    (review,) = (f for f in files["model_def.py"].findings if f.code == "DSM013")
    assert review.severity is Severity.REVIEW
    source = (project / "model_def.py").read_text().splitlines()
    assert source[review.line - 1] == f"class MyTrial({base}):"


def test_what_was_written_is_settled_and_can_be_undone(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project)
    before = (project / "model_def.py").read_bytes()
    monkeypatch.chdir(project)
    assert main(["--write", "--follow", "company", "."]) == 0
    assert (project / COPY).is_file()
    assert not [file.path for file in examples.run(project, options=FOLLOW).files if file.to_write]
    assert main(["--undo"]) == 0
    assert not (project / COPY).exists() and (project / "model_def.py").read_bytes() == before


def test_a_base_of_the_base_is_followed_and_another_package_is_not(project: Path) -> None:
    package = project.parent / "company" / "training"
    (package / "vision.py").write_text("from .base import BaseTrial\n\n\nclass VisionTrial(BaseTrial):\n    pass\n")
    write(project, "from company.training.vision import VisionTrial", "VisionTrial")
    created = {f.path.name for f in examples.run(project, options=FOLLOW).files if f.status is FileStatus.CREATED}
    assert {COPY, "company_training_vision.py"} <= created
    report = examples.run(project, options=Options(follow=("other",)))
    assert {trial.status for _, trial in report.trials()} == {TrialStatus.BLOCKED}
