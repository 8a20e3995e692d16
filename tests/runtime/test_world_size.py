"""A run goes on with another number of ranks: the same global batches, the same numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import toys
from deepspeed.checkpoint import ds_to_universal
from distributed import run_ranks
from test_parallel import PlainDS, plain_torch
from trial_runtime import pytorch
from trial_runtime.pytorch.deepspeed._universal import _convert


def first_part(folder: Path, k: int) -> None:
    for stage in (0, 1, 2, 3):
        toys.fit(PlainDS, {"stage": stage, "k": k}, folder / str(stage), max_length=pytorch.Batch(3))


def second_part(folder: Path, k: int) -> dict[int, list[float]]:
    losses = {}
    for stage in (0, 1, 2, 3):
        rest = toys.fit(
            PlainDS,
            {"stage": stage, "k": k},
            folder / str(stage),
            max_length=pytorch.Batch(6),
            latest_checkpoint="latest",
        )
        micro = [float(metrics["loss"]) for metrics in rest.training]
        losses[stage] = [sum(micro[i : i + k]) / k for i in range(0, len(micro), k)]
    return losses


@pytest.mark.parametrize(("before", "after"), [((2, 1), (1, 2)), ((1, 2), (2, 1))])
def test_a_run_goes_on_with_another_number_of_ranks(
    before: tuple[int, int], after: tuple[int, int], tmp_path: Path
) -> None:
    run_ranks(first_part, tmp_path, before[1], size=before[0])
    losses = run_ranks(second_part, tmp_path, after[1], size=after[0])[0]
    expected, _ = plain_torch(6, 2, 1)  # four samples on each of two ranks are two micro-batches on one
    for stage, found in losses.items():
        assert found == pytest.approx(expected[3:], abs=1e-6), stage
    assert not list(tmp_path.glob("*/checkpoints/.tmp-*"))


def test_a_state_that_is_not_adams_is_refused_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def main(_: object) -> None:
        raise KeyError("exp_avg")  # as DeepSpeed does for Adadelta

    monkeypatch.setattr(ds_to_universal, "main", main)
    (tmp_path / "model0").mkdir()

    problem = _convert(tmp_path, tmp_path / "converted", [0])

    assert problem is not None
    assert "takes Adam's state" in problem
