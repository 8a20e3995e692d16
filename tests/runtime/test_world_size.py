"""A run goes on with another number of ranks: the same global batches, the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import toys
from distributed import run_ranks
from test_parallel import Plain, PlainDS, plain_torch
from torch import nn
from trial_runtime import pytorch


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
def test_a_run_resumes_with_another_number_of_ranks(
    before: tuple[int, int], after: tuple[int, int], tmp_path: Path
) -> None:
    run_ranks(first_part, tmp_path, before[1], size=before[0])
    losses = run_ranks(second_part, tmp_path, after[1], size=after[0])[0]
    expected, _ = plain_torch(6, 2, 1)  # four samples on each of two ranks are two micro-batches on one
    for stage, found in losses.items():
        assert found == pytest.approx(expected[3:], abs=1e-6), stage
    assert not list(tmp_path.glob("*/checkpoints/.tmp-*"))


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "no state": lambda groups: torch.optim.SGD(groups, lr=0.02),
    "one": lambda groups: torch.optim.SGD(groups, lr=0.02, momentum=0.9, nesterov=True),
    "one and a step": lambda groups: torch.optim.Adagrad(groups, lr=0.02),
    "two of other names": lambda groups: torch.optim.Adadelta(groups, lr=0.5),
    "three": lambda groups: torch.optim.RMSprop(groups, lr=0.002, momentum=0.5, centered=True),
    "three with Adam's": lambda groups: torch.optim.Adam(groups, lr=0.02, amsgrad=True),
    "Adam's": lambda groups: torch.optim.Adam(groups, lr=0.02),
    "two and a product": lambda groups: torch.optim.NAdam(groups, lr=0.02),
    "one and numbers": lambda groups: torch.optim.ASGD(groups, lr=0.02, t0=2),
}


class Factored(torch.optim.SGD):
    """Keeps a row of numbers for each parameter."""

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["row"] = torch.zeros(3)


class Different(torch.optim.SGD):
    """Keeps a number that depends on the part of the parameters that a rank has."""

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["norm"] = parameter.detach().norm()


REFUSED: dict[str, Any] = {
    "row": lambda groups: Factored(groups, lr=0.02),
    "norm": lambda groups: Different(groups, lr=0.02),
}


class Optimized(Plain):
    """Two groups with settings of their own."""

    kind = ""

    def optimizer(self, net: nn.Module) -> torch.optim.Optimizer:
        first, *others = net.parameters()
        groups: list[dict[str, Any]] = [{"params": [first], "weight_decay": 0.1}, {"params": others}]
        optimizer: torch.optim.Optimizer = {**OPTIMIZERS, **REFUSED}[self.kind](groups)
        optimizer.param_groups[1]["lr"] *= 0.5
        return optimizer


def losses_of(kind: str) -> list[float]:
    """Of plain torch."""
    plain = Optimized()
    plain.kind = kind
    return plain_torch(6, 2, 1, plain)[0]


class OptimizedDS(Optimized, PlainDS):
    def __init__(self, context: Any) -> None:
        self.kind = context.get_hparam("kind")
        super().__init__(context)


def train(folder: Path, kind: str, stage: int, k: int, end: int) -> list[float]:
    outcome = toys.fit(
        OptimizedDS, {"stage": stage, "k": k, "kind": kind}, folder, max_length=pytorch.Batch(end),
        latest_checkpoint="latest" if end > 3 else None,
    )  # fmt: skip
    micro = [float(metrics["loss"]) for metrics in outcome.training]
    return [sum(micro[i : i + k]) / k for i in range(0, len(micro), k)]


def train_all(folder: Path, stage: int, k: int, end: int) -> dict[str, list[float]]:
    return {kind: train(folder / kind, kind, stage, k, end) for kind in OPTIMIZERS}


# DeepSpeed has one class for stages 1 and 2.
@pytest.mark.parametrize("stage", [1, pytest.param(2, marks=pytest.mark.slow), 3])
def test_every_elementwise_state_comes_along(stage: int, tmp_path: Path) -> None:
    run_ranks(train_all, tmp_path, stage, 1, 3, size=2)
    (found,) = run_ranks(train_all, tmp_path, stage, 2, 6, size=1)
    for kind, losses in found.items():
        assert losses == pytest.approx(losses_of(kind)[3:], abs=1e-6), kind
    assert not list(tmp_path.glob("*/checkpoints/.tmp-*"))


@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize(("kind", "reason"), [("row", "'row' is neither one"), ("norm", "different values of .* norm")])
def test_a_state_that_cannot_come_along_is_refused_with_what_to_do(
    kind: str, reason: str, stage: int, tmp_path: Path
) -> None:
    run_ranks(train, tmp_path, kind, stage, 1, 3, size=2)
    with pytest.raises(AssertionError, match=f"{reason}.* Resume on as many ranks as saved it"):
        run_ranks(train, tmp_path, kind, stage, 2, 6, size=1)
