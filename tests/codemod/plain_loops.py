"""Plain training loops for tests, and their conversion."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import examples
from ds_migrate.files.discovery import discover
from ds_migrate.findings import Report, Severity
from ds_migrate.options import Options
from ds_migrate.pipeline import migrate
from ds_migrate.rules.outcomes import REVIEWED

PLAIN = Options(plain=True)
HEADER = """\
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 1)

    def forward(self, x):
        return self.fc(x)


data = TensorDataset(torch.zeros(8, 4), torch.zeros(8, 1))
"""
LOOP = """\
loader = DataLoader(data, batch_size=4, shuffle=True)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
"""

# Lines that many modules have, by the word that is a line in their text for all of them.
WORDS = {
    "MAKE_MODEL": "model = Net()\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)",
    "STEP": "optimizer.zero_grad()\nF.mse_loss(model(x), y).backward()\noptimizer.step()",
    "LOSS_STEP": "optimizer.zero_grad()\nloss = F.mse_loss(model(x), y)\nloss.backward()\noptimizer.step()",
    "OWN_STEP": "self.optimizer.zero_grad()\nF.mse_loss(self.model(x), y).backward()\nself.optimizer.step()",
}
_WORD = re.compile(rf"^( *)({'|'.join(WORDS)})$", re.MULTILINE)

GIVEN_TRAINER = """
    class Trainer:
        def __init__(self, model, optimizer):
            self.model = model
            self.optimizer = optimizer

        def fit(self, loader):
            for x, y in loader:
                self.optimizer.zero_grad()
                F.mse_loss(self.model(x), y).backward()
                self.optimizer.step()
    """

SUM = """\
def train(model, loader, optimizer):
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(x)
    return AVERAGE
"""
OPTIONAL_SCALER = """
    def train(model, loader, optimizer, scaler=None):
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            if scaler is not None:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            else:
                loss.backward()
                optimizer.step()


    loader = DataLoader(data, batch_size=4)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler() if len(data) else None
    """


def run(folder: Path, options: Options = PLAIN, /, **files: str) -> Report:
    """Write modules, in which WORDS are written out, and plan the conversion of their plain loops."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(written_out(text))
    report = migrate(discover([str(folder)]), options)
    for _, finding in report.findings(Severity.BLOCKED):
        assert examples.is_documented(finding), finding.message
    assert {finding.code for _, finding in report.findings(Severity.REVIEW)} <= REVIEWED
    return report


def convert(folder: Path, text: str, options: Options = PLAIN) -> str:
    """Return the conversion of one module."""
    (result,) = run(folder, options, train=text).files
    assert not examples.problems(result), examples.problems(result)
    assert result.after is not None
    return result.after.decode()


def reviews(folder: Path, text: str, options: Options = PLAIN) -> list[str]:
    """Return what is for review in one module."""
    return [finding.message for _, finding in run(folder, options, train=text).findings(Severity.REVIEW)]


def blocked(folder: Path, text: str, options: Options = PLAIN) -> list[tuple[str, str]]:
    """Return why a module stays as it is."""
    report = run(folder, options, train=text)
    assert not any(file.to_write for file in report.files)
    return [(finding.code, finding.message) for _, finding in report.findings(Severity.BLOCKED)]


def body(text: str) -> str:
    """Return a module of HEADER and a text, in which WORDS are written out."""
    return HEADER + written_out(textwrap.dedent(text))


def written_out(text: str) -> str:
    """Return a module in which lines are in the place of each of WORDS."""
    return _WORD.sub(lambda found: textwrap.indent(WORDS[found[2]], found[1]), text)
