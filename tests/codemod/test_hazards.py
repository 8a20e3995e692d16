"""What a trial does to parameters and gradients in training keeps its optimizer state unsharded."""

from __future__ import annotations

import json
from pathlib import Path

import examples
import pytest


def _module(block: str = "") -> str:
    """Return a trial with an optimizer that has state, so that there is something to shard."""
    return examples.module(block).replace("lr=0.1)", "lr=0.1, momentum=0.9)")


def stage(folder: Path, line: str) -> int:
    """The ZeRO stage that a trial with this line in its ``train_batch`` gets."""
    lines = examples.METHODS["train_batch"].splitlines(keepends=True)
    text = _module("".join([*lines[:-1], f"    {line}\n", lines[-1]]))
    (folder / "model_def.py").write_text(text)
    created = next(f for f in examples.run(folder).files if f.path.name == "ds_config.json")
    assert created.after is not None
    return int(json.loads(created.after)["zero_optimization"]["stage"])


@pytest.mark.parametrize(
    "line",
    [
        "print(self.optimizer.param_groups[0]['lr'])",
        "self.optimizer.param_groups[0]['lr'] *= 0.5",
        "self.state = inputs.shape",
        "self.model.train()",
        "inputs.requires_grad_(True)",
        "batch[0].requires_grad = True",
        "inputs.mul_(2.0)",
    ],
)
def test_harmless_lines_leave_it_sharded(line: str, tmp_path: Path) -> None:
    assert stage(tmp_path, line) == 1


@pytest.mark.parametrize(
    "line",
    [
        "self.model.fc.weight.data.clamp_(-1, 1)",
        "self.model.fc.weight.requires_grad = epoch_idx > 1",
        "self.model.fc.requires_grad_(False)",
        "self.model.freeze()",
        "print(self.model.fc.weight.grad)",
        "print(self.optimizer.state[self.model.fc.weight])",
        "print(list(self.optimizer.state.values()))",
        "torch.save(self.optimizer.state_dict(), 'optimizer.pt')",
        "print(sum(p.norm() for g in self.optimizer.param_groups for p in g['params']))",
        "self.optimizer.add_param_group({'lr': 0.1})",
        "nn.utils.vector_to_parameters(self.average, self.model.parameters())",
        "inputs.register_hook(print)",
        "self.model.fc.reset_parameters()",
        "inputs = self.model.fc.weight\n    inputs.requires_grad_(epoch_idx > 1)",
        "batch = self.model.parameters()\n    batch[0].mul_(0.9)",
        "for inputs in self.model.parameters(): inputs.mul_(0.9)",
        "inputs, = (p for p in self.model.parameters())\n    inputs.clamp_(0, 1)",
    ],
)
def test_lines_that_meet_what_zero_changes_keep_it_whole(line: str, tmp_path: Path) -> None:
    assert stage(tmp_path, line) == 0


HELPERS = """
import torch


def clamp(net):
    for p in net.parameters():
        p.data.clamp_(-1, 1)


def through_another(net):
    clamp(net)


def look(parameters):
    print(sum(p.grad.norm() for p in parameters))


def by_rank(optimizer, loss):
    for group in optimizer.param_groups:
        group["lr"] = loss


def size(net):
    return sum(p.data.numel() for p in net.parameters())


class Average:
    def update(self, net):
        with torch.no_grad():
            for p in net.parameters():
                p.mul_(0.9)

    def show(self, net):
        print(net)
"""


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("helpers.clamp(self.model)", 0),
        ("helpers.clamp(net=self.model)", 0),
        ("helpers.through_another(self.model)", 0),
        ("helpers.look(self.model.parameters())", 0),
        ("helpers.look(list(self.model.parameters()))", 0),
        ("helpers.by_rank(self.optimizer, loss.item())", 0),
        ("helpers.Average().update(self.model)", 0),
        ("self.average.update(self.model)", 0),
        ("helpers.size(self.model)", 1),
        ("self.average.show(self.model)", 1),
        ("helpers.clamp(inputs)", 1),
    ],
)
def test_what_training_calls_in_a_file_that_stays_counts_as_its_own(call: str, expected: int, tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text(HELPERS)
    init = examples.METHODS["__init__"] + "    self.average = helpers.Average()\n\n"
    train = examples.METHODS["train_batch"].replace("    return", f"    {call}\n    return")
    (tmp_path / "model_def.py").write_text("import helpers\n" + _module(init + train))
    report = examples.run(tmp_path)
    created = next(f for f in report.files if f.path.name == "ds_config.json")
    assert created.after is not None
    assert json.loads(created.after)["zero_optimization"]["stage"] == expected
    assert [f.path.name for f in report.files if f.after is not None] == ["model_def.py", "ds_config.json"]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("package.clip(self.model.parameters(), 0.1)", 0),
        ("package.follow(self.model)", 0),
        ("package.loss(self.model(inputs), targets)", 1),
        ("torch.save(self.model.state_dict(), 'model.pt')", 1),
        ("print(self.model)", 1),
    ],
)
def test_what_an_installed_package_does_to_the_model_is_not_known(call: str, expected: int, tmp_path: Path) -> None:
    train = examples.METHODS["train_batch"].replace("    return", f"    {call}\n    return")
    (tmp_path / "model_def.py").write_text("import package\n" + _module(train))
    created = next(f for f in examples.run(tmp_path).files if f.path.name == "ds_config.json")
    assert created.after is not None
    assert json.loads(created.after)["zero_optimization"]["stage"] == expected


def test_helpers_that_cannot_be_read_keep_it_whole(tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text(HELPERS + f"\nTABLE = '{'x' * 1_000_000}'\n")
    train = examples.METHODS["train_batch"].replace("    return", "    helpers.size(self.model)\n    return")
    (tmp_path / "model_def.py").write_text("import helpers\n" + _module(train))
    created = next(f for f in examples.run(tmp_path).files if f.path.name == "ds_config.json")
    assert created.after is not None
    assert json.loads(created.after)["zero_optimization"]["stage"] == 0


NETWORK = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)
        self.other = nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("queue", torch.zeros(4))
        self.fc.weight.data.normal_()
        for one, other in zip(self.fc.parameters(), self.other.parameters()):
            other.requires_grad = False

    @torch.no_grad()
    def follow(self):
        for one, other in zip(self.fc.parameters(), self.other.parameters()):
            other.data = other.data * 0.9 + one.data * 0.1

    @torch.no_grad()
    def clamp(self):
        self.scale.clamp_(0, 1)

    def never(self):
        self.fc.weight.data.zero_()

    def forward(self, x):
        LINE
        return self.fc(x) * self.scale
"""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("self.fc.weight.data = torch.renorm(self.fc.weight.data, 2, 0, 1.0)", 0),
        ("self.fc.weight.data.clamp_(-1, 1)", 0),
        ("weight = self.fc.weight; weight.data.clamp_(-1, 1)", 0),
        ("self.clamp()", 0),
        ("self.fc.weight = nn.Parameter(self.fc.weight * 0.9)", 0),
        ("for p in self.parameters(): p.data.mul_(0.9)", 0),
        ("for m in self.modules(): m.requires_grad_(x.mean() > 0)", 0),
        ("x.requires_grad_(True)", 1),
        ("for p in self.fc.parameters(): p.requires_grad = bool(x.mean() > 0)", 0),
        ("self.follow()", 1),
        ("x = x.clone().mul_(2.0)", 1),
        ("x.data.mul_(2.0)", 1),
        ("self.calls = 1", 1),
        ("with torch.no_grad(): self.queue[:2] = x[0, :2]", 1),
        ("with torch.no_grad(): self.queue.mul_(0.9)", 1),
    ],
)
@pytest.mark.parametrize("apart", [True, False], ids=["in another file", "in one file"])
def test_a_model_that_changes_its_parameters_keeps_it_whole(
    line: str, expected: int, apart: bool, tmp_path: Path
) -> None:
    network = NETWORK.replace("LINE", line)
    text = _module().replace("Net()", "network.Net()" if apart else "OwnNet()")
    own = f"import network\n{text}" if apart else text + network.replace("class Net", "class OwnNet")
    if apart:
        (tmp_path / "network.py").write_text(network)
    (tmp_path / "model_def.py").write_text(own)
    created = next(f for f in examples.run(tmp_path).files if f.path.name == "ds_config.json")
    assert created.after is not None
    assert json.loads(created.after)["zero_optimization"]["stage"] == expected


def holder(folder: Path, made: str, body: str = "") -> int:
    """The ZeRO stage where ``__init__`` keeps ``made`` and training calls its ``update``; ``Holder`` has ``body``."""
    init = examples.METHODS["__init__"] + f"    self.held = {made}\n\n"
    train = examples.METHODS["train_batch"].replace("    return", "    self.held.update()\n    return")
    cls = (
        f"\n\nclass Holder:\n    def __init__(self, model):\n        self.model = model\n\n    {body}\n" if body else ""
    )
    (folder / "model_def.py").write_text(_module(init + train) + cls)
    created = next(f for f in examples.run(folder).files if f.path.name == "ds_config.json")
    assert created.after is not None
    return int(json.loads(created.after)["zero_optimization"]["stage"])


@pytest.mark.parametrize(
    ("made", "body", "expected"),
    [
        ("Holder(self.model)", "def update(self):\n        self.model.fc.weight.data = self.shadow", 0),
        ("Holder(self.model)", "def update(self):\n        print(self.model.training)", 1),
        ("ExponentialMovingAverage(self.model.parameters(), 0.9)", "", 0),
        ("Meter('loss')", "", 1),
    ],
    ids=["a class that changes it", "a class that does not", "a class that is not seen", "no model given"],
)
def test_what_holds_the_model_counts_as_the_trial_itself(made: str, body: str, expected: int, tmp_path: Path) -> None:
    assert holder(tmp_path, made, body) == expected


LOOP = "for group in self.optimizer.param_groups: group['lr'] ="
SAME_ON_ALL_RANKS = {
    "from the batch index": f"{LOOP} 0.1 * 0.5 ** (batch_idx // 100)",
    "from a hyperparameter": f"{LOOP} self.context.get_hparam('lr') * 0.9 ** epoch_idx",
    "from itself": "self.optimizer.param_groups[0]['lr'] *= 0.9 if epoch_idx > 2 else 1.0",
    "from the number of batches": f"{LOOP} 0.1 * batch_idx / len(self.loader)",
    "by a helper": "adjust(self.optimizer, epoch_idx, loss_scale=1.0)",
    "under a condition that all ranks share": "if batch_idx % 10 == 0: self.optimizer.param_groups[0]['lr'] *= 0.9",
    "after a print of the loss": f"print(batch_idx, loss)\n    {LOOP} 0.1 ** batch_idx",
    "a schedule of the epoch": "self.lr_scheduler.step(epoch_idx)",
    "a learning rate warm-up": f"{LOOP} min(1.0, (batch_idx + 1) / 100) * group['initial_lr']",
}
DIFFERENT_BY_RANK = {
    "from the length of the batch": f"{LOOP} 0.1 * len(inputs) / 32",
    "from the batch": "self.optimizer.param_groups[0]['lr'] = 0.1 * batch[0].shape[0]",
    "from the loss": f"{LOOP} 0.1 * loss.item()",
    "from the loss under another name": f"scale = float(loss)\n    {LOOP} 0.1 * scale",
    "from the rank": f"{LOOP} 0.1 * (1 + self.context.distributed.get_rank())",
    "another setting": "self.optimizer.param_groups[0]['weight_decay'] = loss.item()",
    "through an attribute": f"self.last = loss.item()\n    {LOOP} self.last",
    "through a list": f"self.losses = [*self.losses, loss.item()]\n    {LOOP} min(self.losses)",
    "through a meter": f"self.meter.update(loss.item())\n    {LOOP} self.meter.avg",
    "under a condition": "if loss < 1: self.optimizer.param_groups[0]['lr'] *= 0.5",
    "after a return": "if loss > 9: return {'loss': loss}\n    self.optimizer.param_groups[0]['lr'] *= 0.5",
    "by a helper": "adjust(self.optimizer, loss.item())",
    "in a closure": "def change(group): group['lr'] = loss.item()\n    change(self.optimizer.param_groups[0])",
    "by update": "self.optimizer.param_groups[0].update(lr=loss.item())",
    "by random draws": f"import random\n    {LOOP} random.random()",
    "a schedule of the loss": "self.lr_scheduler.step(loss)",
    "a schedule under a condition": "if loss < 1: self.lr_scheduler.step()",
}
HELPER = """

def adjust(optimizer, value, loss_scale=2.0):
    lr = 0.1 * value * loss_scale
    for group in optimizer.param_groups:
        group["lr"] = lr
"""


def plan(folder: Path, line: str) -> tuple[int, str]:
    """The ZeRO stage of a trial with this line in its ``train_batch``, and the reports."""
    lines = examples.METHODS["train_batch"].splitlines(keepends=True)
    text = _module("".join([*lines[:-1], f"    {line}\n", lines[-1]])) + HELPER
    (folder / "model_def.py").write_text(text)
    report = examples.run(folder)
    created = next(f for f in report.files if f.path.name == "ds_config.json")
    assert created.after is not None
    config = json.loads(created.after)
    return config["zero_optimization"]["stage"], " ".join(f.message for file in report.files for f in file.findings)


@pytest.mark.parametrize("line", SAME_ON_ALL_RANKS.values(), ids=SAME_ON_ALL_RANKS)
def test_a_learning_rate_that_all_ranks_share_leaves_it_sharded(line: str, tmp_path: Path) -> None:
    assert plan(tmp_path, line)[0] == 1


@pytest.mark.parametrize("line", DIFFERENT_BY_RANK.values(), ids=DIFFERENT_BY_RANK)
def test_a_learning_rate_that_differs_by_rank_keeps_it_whole(line: str, tmp_path: Path) -> None:
    stage, messages = plan(tmp_path, line)
    assert stage == 0
    assert "differ" in messages and "(model_def.py, line " in messages


def test_a_schedule_of_the_reduced_validation_loss_leaves_it_sharded(tmp_path: Path) -> None:
    callback = """

class Plateau(pytorch.PyTorchCallback):
    def __init__(self, scheduler):
        self.scheduler = scheduler

    def on_validation_end(self, metrics):
        self.scheduler.step(metrics["validation_loss"])
"""
    (tmp_path / "model_def.py").write_text(_module() + callback)
    created = next(f for f in examples.run(tmp_path).files if f.path.name == "ds_config.json")
    assert created.after is not None
    assert json.loads(created.after)["zero_optimization"]["stage"] == 1


def test_a_learning_rate_of_the_rank_in_the_set_up_keeps_it_whole(tmp_path: Path) -> None:
    init = (
        examples.METHODS["__init__"]
        .replace("lr=0.1", "lr=lr")
        .replace("    self.model", "    lr = 0.1 * (1 + context.distributed.get_rank())\n    self.model", 1)
    )
    (tmp_path / "model_def.py").write_text(_module(init))
    created = next(f for f in examples.run(tmp_path).files if f.path.name == "ds_config.json")
    assert created.after is not None
    assert json.loads(created.after)["zero_optimization"]["stage"] == 0


CLIPPED = """\
def train_batch(self, batch, epoch_idx, batch_idx):
    {defined}
    inputs, targets = batch
    loss = self.criterion(self.model(inputs), targets)
    self.context.backward(loss)
    self.context.step_optimizer(self.optimizer, {given})
    return {{"loss": loss}}
{more}"""
NORM = "torch.nn.utils.clip_grad_norm_(params, 1.0)"
NESTED = f"def clip(params): {NORM}"


@pytest.mark.parametrize(
    ("defined", "given", "more", "expected"),
    [
        ("pass", "self.clip", f"\ndef clip(self, params):\n    {NORM}\n", 1),
        (NESTED, "clip", "", 1),
        (f"clip = lambda params: {NORM}", "clip", "", 1),
        (NESTED, "clip", "\ndef limit(self):\n    def clip(m): m.data.clamp_(-1, 1)\n    self.model.apply(clip)\n", 0),
        (f"{NESTED}; params.add_(1)", "clip", "", 0),
        (f"{NESTED}\n    clip(self.model.parameters())", "clip", "", 0),
        ("pass", "self.clip", f"\ndef clip(self, params):\n    {NORM}\n\ndef f(self): self.clip([])\n", 0),
    ],
)
def test_a_function_that_only_clipped_is_dead_and_leaves_it_sharded(
    defined: str, given: str, more: str, expected: int, tmp_path: Path
) -> None:
    block = CLIPPED.format(defined=defined, given=given, more=more)
    (tmp_path / "model_def.py").write_text(_module(block))
    files = {f.path.name: f.after for f in examples.run(tmp_path).files}
    config, code = json.loads(files["ds_config.json"] or b""), (files["model_def.py"] or b"").decode()
    assert config["zero_optimization"]["stage"] == expected
    assert config.get("gradient_clipping") == (0.0 if "add_" in defined else 1.0), code
