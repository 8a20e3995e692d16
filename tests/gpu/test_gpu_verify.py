"""Every fixture on a GPU: original against converted, through ds-verify."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from ds_verify.cli import main
from ds_verify.exit_codes import SAME
from fixture_folders import FIXTURES, TRIALS

ENGINE_MODULE = ("gan",)  # one engine an optimizer: stages 0 and 1 only
HALF = {"bf16": 5e-2, "fp16": 2e-2}

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(560)]


def ranks() -> str:
    """As many as there are GPUs, up to 2; nccl wants a GPU for each."""
    import torch

    return "1,2" if torch.cuda.device_count() > 1 else "1"


def verify(name: str, *options: str, steps: int = 20) -> int:
    folder = str(FIXTURES / name / "before")
    return main([folder, "--device", "cuda", "--ranks", ranks(), "--steps", str(steps), "--no-report", *options])


@pytest.mark.parametrize("name", TRIALS)
def test_fp32_is_the_same_at_every_stage_that_the_conversion_allows(
    name: str, capsys: pytest.CaptureFixture[str], record_property: Callable[[str, object], None]
) -> None:
    code = verify(name, "--zero-sweep", "0,1,2,3")
    printed = capsys.readouterr().out
    record_property("printed", printed)
    assert code == SAME, printed
    refused = [line for line in printed.splitlines() if "did not train" in line]
    if name in ENGINE_MODULE:
        assert len(refused) == 2 * len(ranks().split(","))
        assert all("EngineModule" in line for line in refused)
    else:
        assert refused == []


@pytest.mark.parametrize("config", ["accumulate.yaml"])
def test_accumulation_is_the_same(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify("schedule_clip_reducers", "--config", config) == SAME, capsys.readouterr().out


@pytest.mark.parametrize("stage", ["1", "2", "3"])
def test_an_optimizer_on_the_cpu_is_the_same(stage: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = verify(
        "guide",
        "--deepspeed", f"zero_optimization.stage={stage}",
        "--deepspeed", "zero_optimization.offload_optimizer.device=cpu",
        "--deepspeed", "zero_force_ds_cpu_optimizer=false",
    )  # fmt: skip
    assert code == SAME, capsys.readouterr().out


@pytest.mark.parametrize("precision", HALF)
@pytest.mark.parametrize("name", ["guide", "mnist_legacy"])
def test_half_precision_stays_within_its_tolerance(
    name: str, precision: str, capsys: pytest.CaptureFixture[str], record_property: Callable[[str, object], None]
) -> None:
    code = verify(name, "--precision", precision, "--tolerance", str(HALF[precision]), steps=8)
    printed = capsys.readouterr().out
    record_property("printed", printed)
    assert code == SAME, printed
