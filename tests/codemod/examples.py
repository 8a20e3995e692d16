"""Rule pages as tests: the Before and After blocks of a page, run through the whole codemod.

A block holds methods of a trial (and, at its top, import lines). Methods that it does not hold come from ``TRIAL``.
"""

from __future__ import annotations

import ast
import textwrap
from dataclasses import dataclass
from pathlib import Path

from ds_migrate.cli.commands import options_of
from ds_migrate.cli.parser import parse
from ds_migrate.files.discovery import discover
from ds_migrate.findings import FileResult, Finding, Report, Severity
from ds_migrate.options import Options
from ds_migrate.pipeline import migrate
from ds_migrate.rules.codes import Code
from ds_migrate.rules.pages import Page, page_of

HEADER = """\
import copy
import os
from typing import Any, Dict, Tuple, cast

import torch
from torch import nn

from determined import pytorch
from determined.pytorch import DataLoader, LRScheduler, PyTorchTrial, PyTorchTrialContext, TorchData

from models import Discriminator, Generator, Net


class MyTrial(PyTorchTrial):
"""

GAN_INIT = """\
def __init__(self, context: PyTorchTrialContext) -> None:
    self.context = context
    self.generator = self.context.wrap_model(Generator())
    self.discriminator = self.context.wrap_model(Discriminator())
    self.opt_g = self.context.wrap_optimizer(torch.optim.Adam(self.generator.parameters(), lr=0.1))
    self.opt_d = self.context.wrap_optimizer(torch.optim.Adam(self.discriminator.parameters(), lr=0.1))
"""
"""The ``__init__`` of a trial with two models, each with an optimizer."""

METHODS = {
    "__init__": """\
def __init__(self, context: PyTorchTrialContext) -> None:
    self.context = context
    self.model = self.context.wrap_model(Net())
    self.optimizer = self.context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))
    self.criterion = nn.MSELoss()
""",
    "train_batch": """\
def train_batch(self, batch: TorchData, epoch_idx: int, batch_idx: int) -> Dict[str, Any]:
    inputs, targets = batch
    loss = self.criterion(self.model(inputs), targets)
    self.context.backward(loss)
    self.context.step_optimizer(self.optimizer)
    return {"loss": loss}
""",
    "evaluate_batch": """\
def evaluate_batch(self, batch: TorchData) -> Dict[str, Any]:
    inputs, targets = batch
    return {"validation_loss": self.criterion(self.model(inputs), targets)}
""",
    "build_training_data_loader": """\
def build_training_data_loader(self) -> DataLoader:
    return DataLoader(make_data(), batch_size=self.context.get_per_slot_batch_size())
""",
    "build_validation_data_loader": """\
def build_validation_data_loader(self) -> DataLoader:
    return DataLoader(make_data(), batch_size=self.context.get_per_slot_batch_size())
""",
}

GAN_TRAIN = """\
def train_batch(self, batch: TorchData, epoch_idx: int, batch_idx: int) -> Dict[str, Any]:
    loss_d = self.discriminator(batch[0]).mean()
    self.context.backward(loss_d)
    self.context.step_optimizer(self.opt_d)
    loss_g = self.discriminator(self.generator(batch[0])).mean()
    self.context.backward(loss_g)
    self.context.step_optimizer(self.opt_g)
    return {"loss_g": loss_g, "loss_d": loss_d}
"""


@dataclass(frozen=True)
class Example:
    before: str
    after: str
    options: Options


def example_of(page: Page) -> Example | None:
    """Return the Before and After blocks of a page that shows Python; None when it has none."""
    before, after = page.block("Before"), page.block("After")
    shows_python = (before and page.code.group in "123") or page.block("Options")
    return Example(before, after, options_in(page.block("Options"))) if before and after and shows_python else None


def options_in(command: str) -> Options:
    """Return what the command line makes of ``ds-migrate PATH ...``."""
    return options_of(parse(command.split()[1:] or ["PATH"]))


def methods(text: str) -> dict[str, str]:
    """The methods of a block (or of the class in a module) by name."""
    tree = ast.parse(text)
    body = next((s.body for s in tree.body if isinstance(s, ast.ClassDef)), tree.body)
    lines = text.splitlines(keepends=True)
    found = {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = textwrap.dedent("".join(lines[node.lineno - 1 : node.end_lineno]))
    return found


def module(block: str = "", header: str = HEADER) -> str:
    """A whole trial file around the methods of a block; its own imports replace the header's ``determined`` ones."""
    own = methods(block)
    chosen = dict(METHODS)
    if "generator" in own.get("__init__", "") and "train_batch" not in own:
        chosen["train_batch"] = GAN_TRAIN
        chosen["evaluate_batch"] = METHODS["evaluate_batch"].replace(
            "self.criterion(self.model(inputs), targets)", "self.discriminator(inputs).mean()"
        )
    chosen.update(own)
    if imports(block):
        usual = [line for line in header.splitlines() if line.startswith("from determined")]
        header = header.replace("\n".join(usual), "\n".join(imports(block)))
    if "criterion" not in chosen["__init__"]:
        chosen["train_batch"] = chosen["train_batch"].replace("self.criterion", "nn.functional.mse_loss")
    return header + "\n".join(textwrap.indent(text, "    ") for text in chosen.values())


def source(block: str) -> str:
    """A whole file around an example: around methods, in place of the ``...`` of its classes, or before a script."""
    if "class " not in block:
        return module(block) if "def " in block or imports(block) else f"{module()}\n\n{block}"
    header = HEADER.partition("class MyTrial")[0]
    if imports(block):
        header = "".join(line for line in header.splitlines(keepends=True) if "PyTorchTrial" not in line)
    body = "".join(textwrap.indent(text, "    ") + "\n" for text in METHODS.values())
    return header + block.replace("    ...\n", body)


def imports(block: str) -> list[str]:
    return [line for line in block.splitlines() if line.startswith(("import ", "from "))]


def convert(folder: Path, text: str | bytes, name: str = "model_def.py", options: Options | None = None) -> FileResult:
    """Write one file into a folder of its own and plan its conversion."""
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    report = run(folder, options=options)
    return next(f for f in report.files if f.path.name == name)


def run(*paths: Path, options: Options | None = None) -> Report:
    report = migrate(discover([str(p) for p in paths]), options or Options())
    for file, finding in report.findings(Severity.BLOCKED):
        assert is_documented(finding), f"{file.path}: the page of {finding.code} does not have: {finding.message}"
    return report


def is_documented(finding: Finding) -> bool:
    """Return whether the page of a blocked finding's code has its message."""
    (code,) = (code for code in Code if code == finding.code)
    return any(blocked.matches(finding.message) for blocked in page_of(code).blocked)


def problems(result: FileResult) -> list[str]:
    return [f"{f.line}: {f.code} {f.message}" for f in result.findings if f.severity.value in ("blocked", "error")]
