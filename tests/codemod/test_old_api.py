"""Trials for the API before 0.13 convert in one step, in every form that is known; the others are blocked by name."""

from __future__ import annotations

import ast
from pathlib import Path

import examples
import pytest
from ds_migrate.findings import Severity, TrialStatus
from ds_migrate.options import Options
from ds_migrate.project import trials
from ds_migrate.project.module_index import module_facts
from ds_migrate.rules.codes import Code
from ds_migrate.rules.pages import page_of
from ds_migrate.syntax.source import SourceFile
from idiom_case import Idiom, assert_lines

VERIFY = Path(__file__).parents[1] / "verify" / "old_api"
HEADER = """\
import torch
from torch import nn

import determined as det
from determined.pytorch import ClipGradsL2Norm, ClipGradsL2Value, DataLoader, LRScheduler, PyTorchCallback, PyTorchTrial

from models import Net


class MyTrial(PyTorchTrial):
"""
METHODS = {
    "__init__": """\
    def __init__(self, context: det.TrialContext) -> None:
        self.context = context
""",
    "build_model": """\
    def build_model(self) -> nn.Module:
        return Net()
""",
    "optimizer": """\
    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)
""",
    "train_batch": """\
    def train_batch(self, batch, model: nn.Module, epoch_idx: int, batch_idx: int):
        x, y = batch
        loss = nn.functional.mse_loss(model(x), y)
        return {"loss": loss}
""",
    "evaluate_batch": """\
    def evaluate_batch(self, batch, model: nn.Module):
        x, y = batch
        return {"validation_loss": nn.functional.mse_loss(model(x), y)}
""",
    "loaders": """\
    def build_training_data_loader(self) -> DataLoader:
        return DataLoader(make_data(), batch_size=self.context.get_per_slot_batch_size())

    def build_validation_data_loader(self) -> DataLoader:
        return DataLoader(make_data(), batch_size=self.context.get_per_slot_batch_size())
""",
}
CONFIG = """\
entrypoint: model_def:MyTrial
hyperparameters:
  global_batch_size: 4
"""


def module(header: str = HEADER, **methods: str) -> str:
    """An old trial with other methods than the usual ones; an empty one is left out."""
    return header + "\n".join(text for text in ({**METHODS, **methods}).values() if text)


CONVERTED = {
    "the usual form": Idiom(
        module(),
        has=(
            "class MyTrial(DeepSpeedTrial):",
            "self.context = context",
            "self.model = self.build_model()",
            "self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)",
            "def build_model(self) -> nn.Module:",
            "def train_batch(self, dataloader_iter, epoch_idx: int, batch_idx: int):",
            "loss = nn.functional.mse_loss(self.model(x), y)",
            "self.model.backward(loss)",
            "self.model.step()",
            'return {"loss": loss}',
            "def evaluate_batch(self, dataloader_iter):",
        ),
        lacks=("def optimizer", "ClipGrads"),
    ),
    "an optimizer of several lines stays a method": Idiom(
        module(
            optimizer="""\
    def optimizer(self, model):
        groups = [{"params": model.parameters(), "weight_decay": 0.1}]
        return torch.optim.SGD(groups, lr=0.1)
"""
        ),
        has=("self._optimizer = self.optimizer(self.model)", "def optimizer(self, model):"),
    ),
    "without __init__": Idiom(
        module(__init__=""),
        has=("def __init__(self, context):", "self.context = context", "self.model = self.build_model()"),
    ),
    "__init__ on one line": Idiom(
        module(__init__="    def __init__(self, context): self.context = context\n"),
        has=("def __init__(self, context):", "self.context = context", "self.model = self.build_model()"),
    ),
    "another name for the context": Idiom(
        module(
            __init__="    def __init__(self, trial_context):\n        self.ctx = trial_context\n",
            loaders=METHODS["loaders"].replace("self.context", "self.ctx"),
        ),
        has=(
            "self.ctx = trial_context",
            "self.model = self.build_model()",
            "x, y = self.ctx.to_device(next(dataloader_iter))",
        ),
    ),
    "self.model is taken": Idiom(
        module(build_model="    def build_model(self):\n        self.model = Net()\n        return self.model\n"),
        has=("self.wrapped_model = self.build_model()", "loss = nn.functional.mse_loss(self.wrapped_model(x), y)"),
    ),
    "model is given another value": Idiom(
        module(
            train_batch="""\
    def train_batch(self, batch, model, epoch_idx, batch_idx):
        x, y = batch
        model = model
        loss = nn.functional.mse_loss(model(x), y)
        return {"loss": loss}
"""
        ),
        has=("model = self.model", "model = model"),
    ),
    "the loss is a tensor": Idiom(
        module(
            train_batch="""\
    def train_batch(self, batch, model, epoch_idx, batch_idx) -> torch.Tensor:
        x, y = batch
        error = nn.functional.mse_loss(model(x), y)
        return error
"""
        ),
        has=("self.model.backward(error)", "self.model.step()", "return error"),
    ),
    "metrics by name": Idiom(
        module(
            train_batch="""\
    def train_batch(self, batch, model, epoch_idx, batch_idx):
        x, y = batch
        metrics = {"loss": nn.functional.mse_loss(model(x), y)}
        metrics["double"] = 2 * metrics["loss"]
        return metrics
"""
        ),
        has=('self.model.backward(metrics["loss"])', "self.model.step()", "return metrics"),
    ),
    "metrics that read the model are computed before the step": Idiom(
        module(
            train_batch="""\
    def train_batch(self, batch, model, epoch_idx, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(model(x), y)
        return {"loss": loss, "norm": sum(p.norm() for p in model.parameters())}
"""
        ),
        has=(
            'metrics = {"loss": loss, "norm": sum(p.norm() for p in self.model.parameters())}',
            "self.model.backward(loss)", "self.model.step()", "return metrics",
        ),
    ),
    "metrics that nobody can see": Idiom(
        module(
            train_batch="""\
    def train_batch(self, batch, model, epoch_idx, batch_idx):
        x, y = batch
        return helper(model(x), y)
"""
        ),
        has=(
            "metrics = helper(self.model(x), y)",
            'loss = metrics["loss"] if isinstance(metrics, dict) else metrics',
            "self.model.backward(loss)",
        ),
    ),
    "several returns": Idiom(
        module(
            train_batch="""\
    def train_batch(self, batch, model, epoch_idx, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(model(x), y)
        if batch_idx % 2:
            return {"loss": loss, "odd": 1.0}
        return {"loss": loss}
"""
        ),
        has=(
            "def train_batch(self, dataloader_iter, epoch_idx, batch_idx):",
            "metrics = self._train_batch_metrics(batch=batch, model=self.model, "
            "epoch_idx=epoch_idx, batch_idx=batch_idx)",
            'loss = metrics["loss"] if isinstance(metrics, dict) else metrics',
            "def _train_batch_metrics(self, batch, model, epoch_idx, batch_idx):",
        ),
    ),
    "a schedule of one expression": Idiom(
        module(
            create_lr_scheduler="""\
    def create_lr_scheduler(self, optimizer):
        return LRScheduler(
            torch.optim.lr_scheduler.StepLR(optimizer, 2), step_mode=LRScheduler.StepMode.STEP_EVERY_EPOCH
        )
"""
        ),
        has=(
            "self.lr_scheduler = self.context.wrap_lr_scheduler(",
            "torch.optim.lr_scheduler.StepLR(self.optimizer, 2),",
            "LRScheduler.StepMode.STEP_EVERY_EPOCH,",
        ),
        lacks=("create_lr_scheduler",),
    ),
    "a schedule of several lines": Idiom(
        module(
            create_lr_scheduler="""\
    def create_lr_scheduler(self, optimizer) -> LRScheduler:
        # Halved after each epoch.
        schedule = LRScheduler(torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5), LRScheduler.StepMode.MANUAL_STEP)
        return schedule
""",
            train_batch="""\
    def train_batch(self, batch, model, epoch_idx, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(model(x), y)
        self.context.get_lr_scheduler().step()
        return {"loss": loss, "lr": self.context.get_optimizer().param_groups[0]["lr"]}
""",
        ),
        has=(
            "self.create_lr_scheduler(self.optimizer),", "LRScheduler.StepMode.MANUAL_STEP,",
            "self.lr_scheduler.step()",
            'metrics = {"loss": loss, "lr": self.optimizer.param_groups[0]["lr"]}',
            "def create_lr_scheduler(self, optimizer):",
            "schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)",
        ),
    ),
    "clipping by a callback": Idiom(
        module(build_callbacks='    def build_callbacks(self):\n        return {"clip": ClipGradsL2Norm(0.5)}\n'),
        has=("self.model.step()",),
        lacks=("build_callbacks", "ClipGrads"),
    ),
    "clipping by value": Idiom(
        module(
            build_callbacks="""\
    def build_callbacks(self):
        return {"one": One(), "clip": ClipGradsL2Value(clip_value=0.5), "two": Two()}
"""
        ),
        has=("torch.nn.utils.clip_grad_value_(params, 0.5)", 'return {"one": One(), "two": Two()}'),
        lacks=("ClipGrads",),
    ),
    "evaluate_full_dataset": Idiom(
        module(
            evaluate_batch="""\
    def evaluate_full_dataset(self, data_loader, model):
        losses = []
        for batch in data_loader:
            x, y = self.context.to_device(batch)
            losses.append(nn.functional.mse_loss(model(x), y).item())
        return {"validation_loss": sum(losses) / len(losses)}
"""
        ),
        has=(
            "def evaluate_full_dataset(self, data_loader):",
            "losses.append(nn.functional.mse_loss(self.model(x), y).item())",
        ),
    ),
    "the model first": Idiom(
        module(evaluate_batch=METHODS["evaluate_batch"].replace("batch, model: nn.Module", "model, batch")),
        has=("def evaluate_batch(self, dataloader_iter):",),
    ),
    "comments in a factory keep it a method": Idiom(
        module(
            optimizer="""\
    def optimizer(self, model):
        # As in the paper.
        return torch.optim.SGD(model.parameters(), lr=0.1)
"""
        ),
        has=("def optimizer(self, model):", "# As in the paper."),
    ),
    "the private names of 0.12.11": Idiom(
        examples.module().replace("wrap_model", "_Model").replace("wrap_optimizer", "_Optimizer")
        .replace("context.backward", "context._backward").replace("step_optimizer", "_step_optimizer"),
        has=("self.model = Net()", "self.model.backward(loss)", "self.model.step()"),
    ),
    "pedl": Idiom(
        module(
            """\
import pedl
import torch
from pedl.frameworks.pytorch import PyTorchTrial
from pedl.frameworks.pytorch.data import DataLoader, TorchData
from pedl.frameworks.pytorch.util import error_rate
from torch import nn

from models import Net


class MyTrial(PyTorchTrial):
""",
            optimizer="""\
    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=pedl.get_hyperparameter("lr"))
""",
            evaluate_batch="""\
    def evaluate_batch(self, batch: TorchData, model):
        x, y = batch
        return {"error": error_rate(model(x), y)}
""",
        ),
        has=(
            "def error_rate(predictions, labels):",
            'return torch.optim.SGD(model.parameters(), lr=self.context.get_hparam("lr"))',
        ),
        lacks=("pedl",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("idiom", CONVERTED.values(), ids=list(CONVERTED))
def test_an_old_trial_converts(idiom: Idiom, tmp_path: Path) -> None:
    idiom.check(tmp_path)


SCHEDULE = "    def create_lr_scheduler(self, optimizer):\n        {}\n"
BLOCKED = {
    "another parameter": module(train_batch=METHODS["train_batch"].replace("batch_idx: int", "batch_idx, scale")),
    "train_batch of today": module(train_batch=METHODS["train_batch"].replace("model: nn.Module, ", "")),
    "model with a default": module(evaluate_batch=METHODS["evaluate_batch"].replace("nn.Module", "nn.Module = None")),
    "a model of hyperparameters": module(build_model="    def build_model(self, hparams):\n        return Net()\n"),
    "no loss": module(train_batch="    def train_batch(self, batch, model, epoch_idx, batch_idx):\n        pass\n"),
    "super": module(
        train_batch="""\
    def train_batch(self, batch, model, epoch_idx, batch_idx):
        return super().train_batch(batch, model, epoch_idx, batch_idx)
"""
    ),
    "two constructors": module() + """\


class Other(MyTrial):
    def __init__(self, context):
        super().__init__(context)
        self.size = 3
""",
    "hyperparameters in place of the context": module(
        __init__="    def __init__(self, hparams, size):\n        self.hparams = hparams\n"
    ),
    "__init__ returns": module(
        __init__="""\
    def __init__(self, context):
        self.context = context
        if context.get_hparam("small"):
            return
        self.size = 3
"""
    ),
    "a schedule or none": module(
        create_lr_scheduler=SCHEDULE.format("return make(optimizer) if self.context.get_hparam('s') else None")
    ),
    "a local step mode": module(
        create_lr_scheduler=SCHEDULE.format("mode = pick()\n        return LRScheduler(make(optimizer), mode)")
    ),
    "a hook of that API": module(HEADER.replace(
        "class MyTrial",
        "class Scale(PyTorchCallback):\n    def on_before_optimizer_step(self, parameters):\n        pass\n\n\n"
        "class MyTrial",
    )),
    "two that clip": module(
        build_callbacks="    def build_callbacks(self):\n"
        "        return {'a': ClipGradsL2Norm(0.5), 'b': ClipGradsL2Value(0.5)}\n"
    ),
    "clipping under a condition": module(
        build_callbacks="    def build_callbacks(self):\n        found = {}\n"
        "        found['a'] = ClipGradsL2Norm(0.5)\n        return found\n"
    ),
    "a model asked for elsewhere": module() + "\n\ndef helper(context):\n    return context.get_model()\n",
    "pedl in a function": module(
        HEADER.replace("import determined as det", "import pedl\nimport determined as det")
    ) + "\n\ndef helper():\n    return pedl.get_hyperparameter('n')\n",
}  # fmt: skip


@pytest.mark.parametrize("source", BLOCKED.values(), ids=list(BLOCKED))
def test_what_cannot_be_seen_is_blocked_with_a_way_out(source: str, tmp_path: Path) -> None:
    result = examples.convert(tmp_path, source)
    found = [f for f in result.findings if f.severity is Severity.BLOCKED]
    assert found and all(f.code == Code.OLD_API and f.help and f.line > 1 for f in found), result.findings
    assert {trial.status for trial in result.trials} == {TrialStatus.BLOCKED}
    assert not result.to_write


def test_the_example_of_the_page_converts_as_it_shows(tmp_path: Path) -> None:
    page = page_of(Code.OLD_API)
    result = examples.convert(tmp_path, examples.module(page.block("Before")))
    assert result.after is not None
    written = examples.methods(result.after.decode())
    for name, text in examples.methods(page.block("After")).items():
        assert written[name].strip() == text.strip()


@pytest.mark.parametrize("target", ["runtime", "determined"])
def test_a_whole_project_converts_and_nothing_is_left_to_do(target: str, tmp_path: Path) -> None:
    for path in (VERIFY / "before").iterdir():
        if target == "runtime" or path.name != "accumulate.yaml":  # Determined's loop has no such schedule
            (tmp_path / path.name).write_bytes(path.read_bytes())
    report = examples.run(tmp_path, options=Options(target=target))
    for file in report.files:
        if file.after is not None:
            file.path.write_bytes(file.after)
    if target == "runtime":
        written = {path.name: path.read_text() for path in tmp_path.iterdir()}
        assert written == {path.name: path.read_text() for path in (VERIFY / "after").iterdir()}
    again = examples.run(tmp_path, options=Options(target=target))
    assert {trial.status for _, trial in again.trials()} == {TrialStatus.ALREADY_DEEPSPEED}
    assert not any(file.to_write for file in again.files)
    assert "ClipGrads" not in (tmp_path / "model_def.py").read_text()


def test_findings_are_about_lines_of_the_file_as_it_is(tmp_path: Path) -> None:
    source = module() + "\n\ndef helper(context):\n    context.wrap_scaler(make())\n"
    source = source.replace(
        "        x, y = batch\n        loss", "        self.context._unknown()\n        x, y = batch\n        loss"
    )
    result = examples.convert(tmp_path, source)
    assert result.before == source.encode()
    (line,) = {f.line for f in result.findings if "_unknown" in f.message}
    assert source.splitlines()[line - 1].strip() == "self.context._unknown()"
    (trial,) = result.trials
    assert source.splitlines()[trial.line - 1] == "class MyTrial(PyTorchTrial):"


def test_a_hyperparameter_that_clipped_by_itself_is_kept(tmp_path: Path) -> None:
    (tmp_path / "const.yaml").write_text(CONFIG + "  clip_grad_l2_norm: 0.5\n")
    result = examples.convert(tmp_path, module())
    assert [f.code for f in result.findings if f.severity is Severity.REVIEW] == [Code.OLD_API]
    assert result.after is not None
    assert_lines(result.after.decode(), ('"gradient_clipping": self.context.get_hparam("clip_grad_l2_norm"),',))


def test_two_hyperparameters_that_clip_are_blocked(tmp_path: Path) -> None:
    (tmp_path / "const.yaml").write_text(CONFIG + "  clip_grad_l2_norm: 0.5\n  clip_grad_val: 0.5\n")
    assert examples.problems(examples.convert(tmp_path, module()))


def test_a_base_class_in_another_file_is_upgraded_with_its_trial(tmp_path: Path) -> None:
    (tmp_path / "base.py").write_text(module(build_model="").replace("class MyTrial", "class Base"))
    head = HEADER.replace("class MyTrial(PyTorchTrial)", "class MyTrial(Base)").replace(
        "from models", "from base import Base\nfrom models"
    )
    (tmp_path / "model_def.py").write_text(head + METHODS["build_model"])
    report = examples.run(tmp_path)
    assert not list(report.findings(Severity.BLOCKED))
    after = {file.path.name: file.after.decode() for file in report.files if file.after is not None}
    assert_lines(
        after["base.py"],
        ("class Base(DeepSpeedTrial):", "self.model = self.build_model()", "self.model.backward(loss)"),
    )


def test_a_trial_of_today_with_methods_of_these_names_is_no_old_one(tmp_path: Path) -> None:
    head, _, rest = examples.module().partition("    def train_batch")
    named = (
        "    def build_model(self):\n        return Net()\n\n    def optimizer(self, model):\n        return None\n\n"
    )
    result = examples.convert(tmp_path, f"{head}{named}    def train_batch{rest}")
    assert result.after is not None and not [f for f in result.findings if f.code == Code.OLD_API]


def test_a_file_is_parsed_once_more_for_the_upgrade_and_by_libcst_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other.py").write_text(examples.module())
    read: list[bytes] = []
    parsed: list[Path] = []
    facts, init = module_facts, SourceFile.__init__

    def count_facts(data: bytes, *rest: object) -> object:
        read.append(data)
        return facts(data, *rest)  # type: ignore[arg-type]

    def count_parses(self: SourceFile, path: Path, *rest: object) -> None:
        parsed.append(path)
        init(self, path, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(trials, "module_facts", count_facts)
    monkeypatch.setattr(SourceFile, "__init__", count_parses)
    examples.convert(tmp_path, module())
    assert sorted(path.name for path in parsed) == ["model_def.py", "other.py"]
    assert len(read) == len(set(read)) == 3  # the old file, its new form, the other file


@pytest.mark.parametrize("newline", ["\r\n", "\n"])
def test_every_line_keeps_its_line_break_and_encoding(newline: str, tmp_path: Path) -> None:
    text = ("# -*- coding: latin-1 -*-\n# caf\xe9\n" + module()).replace("\n", newline)
    after = examples.convert(tmp_path, text.encode("latin-1")).after
    assert after is not None and b"# caf\xe9" in after
    assert after.count(b"\r\n") == (after.count(b"\n") if newline == "\r\n" else 0)
    ast.parse(after)
