"""A review names the place that causes it, only for the receiver that it is about, once for each cause.

Each case is a trial in which lines that look alike cause none; the lines that cause one end with its code.
"""

from __future__ import annotations

import re
from pathlib import Path

import examples
import pytest
from ds_migrate.findings import Severity

TRIAL = """\
import torch
from torch import nn
from determined.pytorch import DataLoader, PyTorchCallback, PyTorchTrial, PyTorchTrialContext

from models import Net, make_data


class MyTrial(PyTorchTrial):
    def __init__(self, context: PyTorchTrialContext) -> None:
        self.context = context
        self.config = nn.Module()
        {before}
        self.model = self.context.wrap_model(Net())
        self.other = Net()
        self.optimizer = self.context.wrap_optimizer(torch.optim.Adam(self.model.parameters(), lr=0.1))
        {init}

    def train_batch(self, batch, epoch_idx, batch_idx):
        x, y = batch
        {start}
        loss = (self.model(x) - y).square().mean()
        {loss}
        self.context.backward(loss)
        {backward}
        self.context.step_optimizer(self.optimizer)
        {end}
        return {{"loss": loss}}

    def evaluate_batch(self, batch):
        x, y = batch
        return {{"validation_loss": (self.model(x) - y).square().mean()}}

    def build_training_data_loader(self):
        return DataLoader(make_data(), batch_size=self.context.get_per_slot_batch_size())

    def build_validation_data_loader(self):
        return DataLoader(make_data(), batch_size=self.context.get_per_slot_batch_size())
"""
PARTS = ("before", "init", "start", "loss", "backward", "end")

ACCUMULATES = "optimizations: {aggregation_frequency: 2}\n"

CASES: dict[str, tuple[dict[str, str], str]] = {
    "an attribute of the wrapped model, set in training": (
        {"start": "self.other.rate = 1\nself.config.rate = 2\nself.model.rate = 3  # DSM352\nx.rate = 4"}, ""),
    "a method past the wrapper, of the second model": (
        {"init": "self.second = self.context.wrap_model(Net())\n"
                 "self.opt2 = self.context.wrap_optimizer(torch.optim.Adam(self.second.parameters(), lr=0.1))",
         "loss": "loss = loss + self.other.penalty(x) + self.model.penalty(x)",
         "end": "loss2 = self.second.penalty(x)  # DSM301\n"
                "self.context.backward(loss2)\nself.context.step_optimizer(self.opt2)"}, ""),
    "parameters thawed later": (
        {"before": "net = Net()\nfor p in self.config.parameters():\n    p.requires_grad_(False)",
         "start": "x.requires_grad_(True)\ny = y.requires_grad_(False)"}, ""),
    "gradients that are read while they accumulate": (
        {"backward": "print(self.other.fc.bias.grad)", "init": "print(1)"}, ACCUMULATES),
    "two optimizers, one with compression": (
        {"init": "self.second = self.context.wrap_model(Net())\n"
                 "self.opt2 = self.context.wrap_optimizer(\n"
                 "    torch.optim.Adam(self.second.parameters(), lr=0.1),\n"
                 "    fp16_compression=True,  # DSM202\n)",
         "end": "self.context.backward(self.second(x).mean())\nself.context.step_optimizer(self.opt2)"}, ""),
    "zero_grad before another backward": (
        {"start": "self.other.zero_grad()\nself.optimizer.zero_grad()  # DSM303"}, ACCUMULATES),
    "the end of an epoch": (
        {"start": "print(self.other.is_epoch_end())\nprint(self.context.is_epoch_end())  # DSM390\n"
                  "print(self.context.current_train_batch())"}, ACCUMULATES),
    "the index, hidden among other arguments": (
        {"start": "self.other.batch_idx = 1\nself.other(batch_idx=2)\nprint('batch_idx')"}, ACCUMULATES),
    "state that a callback restores": (
        {"start": "self.other.load_state_dict({})",
         "tail": "class Keep:\n    def load_state_dict(self, state):\n        self.net.load_state_dict(state)\n\n\n"
                 "class Own(PyTorchCallback):\n    def load_state_dict(self, state):\n        self.best = state\n\n\n"
                 "class Whole(Own):\n    def load_state_dict(self, state):  # DSM350\n"
                 "        self.net.load_state_dict(state)\n        self.ema.load_state_dict(state)\n"}, ""),
    "state of a buffer that the trial fills": (
        {"start": "self.replay.append(x)",
         "tail": "class Own(PyTorchCallback):\n    def load_state_dict(self, state):\n"
                 "        super().load_state_dict(state)\n"
                 "        self.best, self.bad = state['best'], state['bad']\n"
                 "        self.history.extend(state['all'])\n"
                 "        print('restored', state)\n\n\n"
                 "class Replay(PyTorchCallback):\n    def load_state_dict(self, state):  # DSM350\n"
                 "        self.trial.replay.extend(state['replay'])\n\n\n"
                 "class Generator(PyTorchCallback):\n    def load_state_dict(self, state):  # DSM350\n"
                 "        random.setstate(state)\n\n\n"
                 "class Steps(PyTorchCallback):\n    def load_state_dict(self, state):  # DSM350\n"
                 "        self.trial.steps = state['steps']\n"}, ""),
    "state that the trial writes into a callback": (
        {"init": "self.meter = Meter()\nself.sums = Sums()\nself.best = Best()",
         "start": "self.meter.add(x.sum())\nself.sums.total = x.sum()\nprint(self.best.value())",
         "tail": "class Meter(PyTorchCallback):\n    def add(self, value):\n        self.seen.append(value)\n\n"
                 "    def load_state_dict(self, state):  # DSM350\n        self.seen = state['seen']\n\n\n"
                 "class Sums(PyTorchCallback):\n    def load_state_dict(self, state):  # DSM350\n"
                 "        self.total = state['total']\n\n\n"
                 "class Best(PyTorchCallback):\n    def on_validation_end(self, metrics):\n"
                 "        self.lowest = metrics\n\n"
                 "    def value(self):\n        return self.lowest\n\n"
                 "    def load_state_dict(self, state):\n        self.lowest = state['lowest']\n"}, ""),
    "a name that the runtime lacks, used twice": (
        {"before": "import determined.keras\nprint(determined.keras)  # DSM101",
         "start": "print(determined.keras)"}, ""),
    "a length of the config": (
        {"start": "print(self.config.get('schedule'), 'the scheduling_unit')\n"
                  "unit = self.context.get_experiment_config()['scheduling_unit']  # DSM353"}, ACCUMULATES),
    "the length of an epoch": (
        {"start": "print(self.other._epoch_len)\nprint(self.context._epoch_len)  # DSM390"}, ACCUMULATES),
    "attributes of the trial by name": (
        {"start": "print(vars(self.config))",
         "end": "for value in vars(self).values():  # DSM306\n    print(isinstance(value, Net))"}, ""),
    "mixed precision": (
        {"before": "self.config.scaler = torch.GradScaler('cpu')",
         "init": "self.scaler = torch.GradScaler('cpu')",
         "start": "with torch.no_grad():\n    print(self.config.scaler.scale(x))"}, ""),
    "nothing at all": ({"start": "x.requires_grad_(True)\nself.rate = self.other.rate = 1"}, ""),
}  # fmt: skip


def lines_of(text: str, depth: str) -> str:
    return text.replace("\n", f"\n{depth}") or "pass"


@pytest.mark.parametrize("name", CASES)
def test_a_review_stands_at_its_cause(name: str, tmp_path: Path) -> None:
    parts, config = CASES[name]
    text = TRIAL.format(**{part: lines_of(parts.get(part, ""), " " * 8) for part in PARTS})
    text += "\n\n" + parts.get("tail", "")
    head = "entrypoint: model_def:MyTrial\nhyperparameters: {global_batch_size: 8}\n"
    (tmp_path / "const.yaml").write_text(head + config)

    result = examples.convert(tmp_path, text)

    assert examples.problems(result) == []
    marked = [
        (index, code) for index, line in enumerate(text.splitlines(), 1) for code in re.findall(r"# (DSM\d+)", line)
    ]
    assert [(f.line, f.code) for f in result.findings if f.severity is Severity.REVIEW] == marked
