"""Trials that share an ``__init__`` share the lines that make their engine."""

from __future__ import annotations

from pathlib import Path

import examples
from ds_migrate.result import FileKind, TrialStatus

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
    assert any("share their __init__" in problem for problem in examples.problems(result))
