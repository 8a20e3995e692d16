"""What a trial does to parameters and gradients in training keeps its optimizer state unsharded."""

from __future__ import annotations

import json
from pathlib import Path

import examples
import pytest


def stage(folder: Path, line: str) -> int:
    """The ZeRO stage that a trial with this line in its ``train_batch`` gets."""
    lines = examples.METHODS["train_batch"].splitlines(keepends=True)
    text = examples.module("".join([*lines[:-1], f"    {line}\n", lines[-1]]))
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
    ],
)
def test_lines_that_meet_what_zero_changes_keep_it_whole(line: str, tmp_path: Path) -> None:
    assert stage(tmp_path, line) == 0


def holder(folder: Path, made: str, body: str = "") -> int:
    """The ZeRO stage where ``__init__`` keeps ``made`` and training calls its ``update``; ``Holder`` has ``body``."""
    init = examples.METHODS["__init__"] + f"    self.held = {made}\n\n"
    train = examples.METHODS["train_batch"].replace("    return", "    self.held.update()\n    return")
    cls = (
        f"\n\nclass Holder:\n    def __init__(self, model):\n        self.model = model\n\n    {body}\n" if body else ""
    )
    (folder / "model_def.py").write_text(examples.module(init + train) + cls)
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
