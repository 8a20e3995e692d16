"""Bytes a parameter of the training state, and what the summary makes of them."""

from __future__ import annotations

from pathlib import Path

import examples
import pytest
from ds_migrate.deepspeed_facts import training_state
from ds_migrate.options import Options
from ds_migrate.report.summary import Mode, sentences

SGD = """
def __init__(self, context: PyTorchTrialContext) -> None:
    self.context = context
    self.model = self.context.wrap_model(Net())
    self.optimizer = self.context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))
"""


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ((0, "fp32", "none", 2), "16"),
        ((0, "fp32", "none", 0), "8"),
        ((0, "bf16", "none", 2), "20"),
        ((1, "fp32", "none", 2), "8 + 12/N"),
        ((1, "bf16", "none", 2), "4 + 12/N"),
        ((2, "autocast", "none", 1), "4 + 12/N"),
        ((2, "bf16", "none", 2), "2 + 16/N"),
        ((3, "fp32", "none", 2), "24/N"),
        ((3, "bf16", "optimizer", 2), "2/N (and 18/N in host memory)"),
        ((3, "bf16", "parameters", 2), "20/N in host memory"),
        ((1, "bf16", "optimizer", 2), "4 (and 18/N in host memory)"),
    ],
)
def test_bytes_a_parameter(arguments: tuple[int, str, str, int], shown: str) -> None:
    assert str(training_state(*arguments)) == shown


def test_the_summary_compares_what_the_trial_can_have(tmp_path: Path) -> None:
    (tmp_path / "model_def.py").write_text(examples.module(SGD))
    report = examples.run(tmp_path)

    (said,) = [line for line in sentences(report, Mode.PREVIEW) if line.startswith("Memory")]

    assert "8 in PyTorchTrial; 8 + 4/N as converted; 4 + 8/N with --zero 2; 16/N with --zero 3" in said
    assert not any(line.startswith("Memory") for line in sentences(report, Mode.CHECK))


def test_what_a_trial_cannot_have_is_not_offered(tmp_path: Path) -> None:
    train = examples.METHODS["train_batch"].replace("self.model(inputs)", "self.model.embed(inputs)")
    (tmp_path / "model_def.py").write_text(examples.module(train))
    report = examples.run(tmp_path, options=Options())

    (said,) = [line for line in sentences(report, Mode.PREVIEW) if line.startswith("Memory")]

    assert "--zero 2" in said and "--zero 3" not in said and "bf16" not in said
