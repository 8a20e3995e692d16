"""Trials that share an ``__init__`` share the lines that make their engine."""

from __future__ import annotations

import json
from pathlib import Path

import examples
from ds_migrate.findings import FileKind, TrialStatus

GATE = "if self.context.is_gradient_accumulation_boundary():"


def family(folder: Path, step: str, loss: str = "loss") -> str:
    """``MyTrial`` and a trial derived from it that trains its own way; returns the converted file, "" when blocked."""
    derived = f"""

class OtherTrial(MyTrial):
    def train_batch(self, batch, epoch_idx, batch_idx):
        inputs, targets = batch
        for part in range(2):
            loss = self.criterion(self.model(inputs[part::2]), targets[part::2])
            self.context.backward({loss})
        {step}
        return {{"loss": loss}}
"""
    result = examples.convert(folder, examples.module() + derived)
    assert len({trial.status for trial in result.trials}) == 1
    return result.after.decode() if result.after is not None else ""


def test_a_method_defined_anew_is_not_taken_for_a_backward_by_hand(tmp_path: Path) -> None:
    after = family(tmp_path, "self.context.step_optimizer(self.optimizer)", "loss / 2")
    base = examples.methods(after)["train_batch"]
    assert "self.model.backward(loss)\n" in base
    assert "self.model.backward(loss / 2)\n" in after


def test_where_one_trial_counts_by_hand_both_do(tmp_path: Path) -> None:
    after = family(tmp_path, "self.context.step_optimizer(self.optimizer)")
    assert after.count(GATE) == 2
    assert after.count("deepspeed.initialize(") == 1
    configs = [f for f in examples.run(tmp_path).files if f.kind is FileKind.DS_CONFIG]
    assert [f.path.name for f in configs] == ["ds_config.json"]
    assert b'"managed_gradient_accumulation": false' in (configs[0].after or b"")


def test_trials_that_clip_differently_cannot_share_an_engine(tmp_path: Path) -> None:
    clip = "clip_grads=lambda p: torch.nn.utils.clip_grad_norm_(p, 0.5)"
    assert family(tmp_path, f"self.context.step_optimizer(self.optimizer, {clip})") == ""
    (result,) = [f for f in examples.run(tmp_path).files if f.trials]
    assert {trial.status for trial in result.trials} == {TrialStatus.BLOCKED}
    assert any("inherit the same __init__" in problem for problem in examples.problems(result))


def test_what_a_derived_init_does_to_the_model_it_does_to_the_engines_module(tmp_path: Path) -> None:
    derived = """

class OtherTrial(MyTrial):
    def __init__(self, context: PyTorchTrialContext) -> None:
        super().__init__(context)
        self.model.load_state_dict(torch.load("weights.pt"), strict=False)
"""
    result = examples.convert(tmp_path, examples.module() + derived)
    assert b"self.model.module.load_state_dict(" in (result.after or b"")
    configs = [json.loads(f.after or b"") for f in examples.run(tmp_path).files if f.kind is FileKind.DS_CONFIG]
    assert [config["zero_optimization"]["stage"] for config in configs] == [0]


def test_an_engine_is_made_after_what_init_does_behind_its_helper(tmp_path: Path) -> None:
    init = """def __init__(self, context: PyTorchTrialContext) -> None:
    self.context = context
    self.build()
    self.model.load_state_dict(torch.load("weights.pt"), strict=False)
    self.losses = []

def build(self) -> None:
    self.model = self.context.wrap_model(Net())
    self.optimizer = self.context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))
"""
    after = (examples.convert(tmp_path, examples.module(init)).after or b"").decode()
    load, engine = after.index("self.model.load_state_dict("), after.index("deepspeed.initialize(")
    assert load < engine < after.index("self.losses = []")


MORE = """

class OtherTrial(MyTrial):
    def __init__(self, context: PyTorchTrialContext) -> None:
        super().__init__(context)
        self.head = self.context.wrap_model(nn.Linear(1, 1))
        self.head_optimizer = self.context.wrap_optimizer(torch.optim.SGD(self.head.parameters(), lr=0.1))
"""


def test_a_trial_whose_engine_a_derived_one_makes_is_reported_to_train_only_as_that(tmp_path: Path) -> None:
    result = examples.convert(tmp_path, examples.module() + MORE)
    assert result.after is not None
    assert len([f for f in result.findings if "MyTrial has no separate engine any more" in f.message]) == 1


def test_a_trial_that_steps_by_itself_cannot_leave_its_engine_to_a_derived_one(tmp_path: Path) -> None:
    train = """
    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = self.head(self.model(batch[0])).mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        self.context.step_optimizer(self.head_optimizer)
        return {"loss": loss}
"""
    result = examples.convert(tmp_path, examples.module() + MORE + train)
    assert result.after is None
    assert any("MyTrial would have no engine" in problem for problem in examples.problems(result))


HELPERS = """def __init__(self, context: PyTorchTrialContext) -> None:
    self.context = context
    self.model = self.context.wrap_model(Net())
    self.optimizer = self.context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))
    self.set_up()

def set_up(self) -> None:
    self.kind = type(self.model)
    self.keep()

def keep(self) -> None:
    self.kept = self.model.state_dict()
"""


def test_what_helpers_of_a_helper_do_before_the_engine_they_do_to_the_raw_model(tmp_path: Path) -> None:
    after = (examples.convert(tmp_path, examples.module(HELPERS)).after or b"").decode()
    assert "self.kept = self.model.state_dict()" in after
    assert "self.model = self.context.wrap_model_engine(engine)" in after


def test_a_method_that_meets_the_model_before_and_after_keeps_meeting_the_raw_one(tmp_path: Path) -> None:
    again = "\ndef refresh(self) -> None:\n    self.keep()\n"
    after = (examples.convert(tmp_path, examples.module(HELPERS + again)).after or b"").decode()
    assert "self.kept = self.model.state_dict()" in after
    assert "self.engine = self.context.wrap_model_engine(engine)" in after
