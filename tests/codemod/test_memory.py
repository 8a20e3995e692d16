"""Bytes a parameter of the training state, and what the summary makes of them."""

from __future__ import annotations

from pathlib import Path

import examples
import pytest
from ds_migrate.cli import main
from ds_migrate.deepspeed_facts import training_state
from ds_migrate.options import Options
from ds_migrate.report.summary import memory_lines

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


def test_the_table_compares_what_the_trial_can_have(tmp_path: Path) -> None:
    (tmp_path / "model_def.py").write_text(examples.module(SGD))
    assert list(memory_lines(examples.run(tmp_path))) == [
        "GB of training state for each billion parameters, on each of 8 ranks",
        "    8.0  in PyTorchTrial",
        "    8.0  as converted",
        "    5.0  with --zero 2",
        "    2.0  with --zero 3",
        "    4.5  with --precision bf16",
        "    8.0  and 1.5 in host memory with --offload optimizer",
    ]


def test_what_a_trial_cannot_have_is_not_offered(tmp_path: Path) -> None:
    train = examples.METHODS["train_batch"].replace("self.model(inputs)", "self.model.embed(inputs)")
    (tmp_path / "model_def.py").write_text(examples.module(train))
    said = "\n".join(memory_lines(examples.run(tmp_path, options=Options())))
    assert "--zero 2" in said and "--zero 3" not in said and "bf16" not in said


def test_memory_is_shown_on_demand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model_def.py").write_text(examples.module(SGD))
    assert main([str(tmp_path)]) == 0 and "billion" not in capsys.readouterr().err
    assert main([str(tmp_path), "--memory"]) == 0 and "as converted" in capsys.readouterr().err
