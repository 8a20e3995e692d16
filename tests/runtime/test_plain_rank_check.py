"""``match_torch``'s check that all ranks still train one model."""

from __future__ import annotations

import pytest
import torch
from distributed import run_ranks


def train_apart(stage: int, check: bool) -> list[str]:
    """Return the errors of engines whose ranks part in another way each, "" where there is none."""
    import deepspeed
    import torch.distributed as dist
    from trial_runtime.errors import InvalidExperimentException
    from trial_runtime.plain import match_torch
    from trial_runtime.pytorch.deepspeed._patches import shared_memory_comm

    rank = dist.get_rank()
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }
    errors = []
    for learning_rate, shift in ((0.1, 1e-9), (0.1 / (1 + rank), 0.0), (0.1, 1.0)):
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
        with shared_memory_comm.apply():
            engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
        match_torch(engine, check_ranks=check)
        error = ""
        try:
            for step in range(5):
                engine.backward(engine(torch.randn(4, 2)).sum())
                engine.step()
                if step == 1:
                    optimizer.param_groups[0]["lr"] = learning_rate
                    model.bias.data.add_(rank * shift)
        except InvalidExperimentException as raised:
            error = str(raised)
        errors.append(error)
    return errors


def test_ranks_that_part_raise_an_error_on_all_ranks_that_shows_how() -> None:
    first, second = run_ranks(train_apart, 0, True)
    assert first == second
    alike, rate, weights = first
    assert alike == ""
    assert "after 4 steps lr of the optimizer's group 0 is 0.1 on rank 0 and 0.05 on rank 1" in rate
    assert "after 4 steps values of bias on ranks 0 and 1 differ by up to 1." in weights


def test_ranks_are_checked_at_stage_1() -> None:
    ((_, rate, _), _) = run_ranks(train_apart, 1, True)
    assert "lr of the optimizer's group 0" in rate


def test_ranks_part_without_an_error_where_the_script_allows_it() -> None:
    assert run_ranks(train_apart, 0, False) == [["", "", ""]] * 2


@pytest.mark.parametrize(("made", "is_checked"), [(1, True), (3, False), (512, True), (1000, False), (2048, True)])
def test_checks_become_rare(made: int, is_checked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from trial_runtime.plain import _rank_check

    class Engine:
        global_steps = made - 1

        def step(self) -> None:
            self.global_steps += 1

    checked: list[int] = []
    monkeypatch.setattr(_rank_check, "_check", lambda _, made: checked.append(made))
    engine = Engine()
    _rank_check.check_ranks(engine)
    engine.step()
    assert checked == [made] * is_checked


@pytest.mark.parametrize("check", [True, False])
def test_steps_with_a_closure_are_checked_too(check: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """LBFGS stepped beside the check, which waits for ``engine.step()``."""
    from trial_runtime.plain import _rank_check, step_with

    class Engine:
        global_steps = 0
        _running_engine_step = False
        weight = torch.nn.Parameter(torch.ones(1))
        optimizer = torch.optim.LBFGS([weight])

        def step(self) -> None:
            raise AssertionError

        def zero_optimization_stage(self) -> int:
            return 0

        def allreduce_gradients(self) -> None:
            pass

    def closure() -> torch.Tensor:
        engine.optimizer.zero_grad()
        loss = engine.weight.square().sum()
        loss.backward()
        return loss

    checked: list[int] = []
    monkeypatch.setattr(_rank_check, "_check", lambda _, made: checked.append(made))
    engine = Engine()
    if check:
        _rank_check.check_ranks(engine)
    for _ in range(3):
        step_with(engine, closure)
    assert checked == [1, 2] * check
