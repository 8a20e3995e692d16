"""Facts and decisions are frozen values: deciding on a trial changes neither the trial nor an earlier decision."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import examples
import pytest
from ds_migrate.conversion import attempt
from ds_migrate.decisions import decide
from ds_migrate.decisions.engine_plan import Accumulation, Blocked, EnginePlan
from ds_migrate.options import Options
from ds_migrate.targets import Target
from ds_migrate.trial.model import Trial

TRIALS = {
    "one engine": "",
    "clipped and autocast": """\
def train_batch(self, batch: TorchData, epoch_idx: int, batch_idx: int) -> Dict[str, Any]:
    inputs, targets = batch
    with torch.cuda.amp.autocast():
        loss = self.criterion(self.model(inputs), targets)
    self.context.backward(loss)
    self.context.step_optimizer(self.optimizer, clip_grads=lambda p: torch.nn.utils.clip_grad_norm_(p, 0.5))
    return {"loss": loss}
""",
    "an engine per optimizer": """\
def __init__(self, context: PyTorchTrialContext) -> None:
    self.context = context
    self.model = self.context.wrap_model(Net())
    self.other = self.context.wrap_model(Net())
    self.optimizer = self.context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))
    self.opt = self.context.wrap_optimizer(torch.optim.Adam(self.other.parameters(), lr=0.1))
    self.criterion = nn.MSELoss()
""",
}
OTHER = Options(zero=3, precision="bf16", offload="parameters", optimizer_in_config=True)


@pytest.mark.parametrize("name", TRIALS)
def test_deciding_with_other_options_changes_no_fact_and_no_decision(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = decide
    plans: list[EnginePlan] = []

    def several(trial: Trial, options: Options, target: Target, accumulation: Accumulation) -> EnginePlan | Blocked:
        facts = values(trial)
        first = right(trial, options, target, accumulation)
        assert isinstance(first, EnginePlan)
        decided = values(first)
        other = right(trial, OTHER, target, Accumulation(is_used=True, averages=False))
        again = right(trial, options, target, accumulation)
        assert isinstance(other, EnginePlan) and isinstance(again, EnginePlan)
        assert other.options != first.options
        assert values(trial) == facts and values(first) == values(again) == decided
        plans.append(first)
        return first

    monkeypatch.setattr(attempt, "decide", several)
    (tmp_path / "model_def.py").write_text(examples.module(TRIALS[name]))
    examples.run(tmp_path)
    (plan,) = plans
    trial = plan.trial
    for value in (trial, *trial.parts, *trial.models, *trial.optimizers, *trial.steps, *trial.backwards, plan):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, next(iter(vars(value))), None)


def values(value: Trial | EnginePlan) -> dict[str, object]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
