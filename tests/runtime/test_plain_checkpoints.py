"""``trial_runtime.plain.optimizer_state``: checkpoints of a sharded engine are those of torch, both ways."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from distributed import run_ranks

STEPS = 3
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9},
    "AdamW": {"lr": 0.1, "amsgrad": True},
    "NAdam": {"lr": 0.1},
    "ASGD": {"lr": 0.1},
    "Rprop": {"lr": 0.1},
    "Adagrad": {"lr": 0.1},
}


def make(name: str) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1, bias=False))
    first, second, third = model.parameters()
    kind = getattr(torch.optim, name)
    return model, kind([{"params": [first, third]}, {"params": [second], "lr": 0.05}], **OPTIMIZERS[name])


def batches() -> list[torch.Tensor]:
    return list(torch.randn(2 * STEPS, 4, 3, generator=torch.Generator().manual_seed(1)))


def loss_of(model: Any, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).pow(2).mean()  # type: ignore[no-any-return]


def train_alone(name: str, state: dict[str, Any] | None) -> dict[str, Any]:
    """Return the checkpoint of a training by torch: its first half, or the second one from a state."""
    model, optimizer = make(name)
    if state is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    for batch in batches()[:STEPS] if state is None else batches()[STEPS:]:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
    return copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})


def train_sharded(states: dict[str, dict[str, Any] | None]) -> dict[str, dict[str, Any]]:
    """Return for each optimizer the checkpoint of half a training by an engine of ZeRO stage 1."""
    import deepspeed
    import torch.distributed as dist
    from trial_runtime.plain import init_distributed, load_optimizer_state, match_torch, optimizer_state

    init_distributed()
    found = {}
    for name, state in states.items():
        model, optimizer = make(name)
        config = {
            "train_micro_batch_size_per_gpu": 4,
            "gradient_clipping": 0.0,
            "zero_optimization": {"stage": 1},
            "zero_allow_untested_optimizer": True,
        }
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
        match_torch(engine)
        if state is not None:
            model.load_state_dict(state["model"])
            load_optimizer_state(optimizer, state["optimizer"])
        for batch in batches()[:STEPS] if state is None else batches()[STEPS:]:
            engine.backward(loss_of(engine, batch))
            engine.step()
        saved = {"model": model.state_dict(), "optimizer": optimizer_state(engine.optimizer)}
        found[name] = copy.deepcopy(saved) if dist.get_rank() == 0 else saved["optimizer"]["state"]
    return found


def test_a_sharded_engine_saves_and_resumes_what_torch_does() -> None:
    begun = {name: train_alone(name, None) for name in OPTIMIZERS}
    saved, nothing = run_ranks(train_sharded, dict.fromkeys(OPTIMIZERS))
    resumed, _ = run_ranks(train_sharded, begun)
    assert nothing == {name: {} for name in OPTIMIZERS}
    for name in OPTIMIZERS:
        torch.testing.assert_close(saved[name], begun[name], msg=name)
        ended = train_alone(name, begun[name])
        torch.testing.assert_close(resumed[name], ended, msg=name)
        torch.testing.assert_close(train_alone(name, saved[name]), ended, msg=name)


def load_unequal() -> None:
    state = train_alone("AdamW", None)
    state["optimizer"]["state"][0]["step"] += 1
    train_sharded({"AdamW": state})


def train_twice() -> dict[str, bool]:
    """Return for each optimizer whether training ends in the same weights once more from a state in memory."""
    import deepspeed
    from trial_runtime.plain import init_distributed, load_optimizer_state, match_torch, optimizer_state

    init_distributed()
    found = {}
    for name in OPTIMIZERS:
        model, optimizer = make(name)
        config = {
            "train_micro_batch_size_per_gpu": 4,
            "zero_optimization": {"stage": 1},
            "zero_allow_untested_optimizer": True,
        }
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
        match_torch(engine)
        ends, state = list[Any](), None
        for batch in [*batches(), *batches()[STEPS:]]:
            if len(ends) == STEPS:
                state = copy.deepcopy((model.state_dict(), optimizer_state(optimizer)))
            if len(ends) == 2 * STEPS and state is not None:
                model.load_state_dict(state[0])
                load_optimizer_state(optimizer, state[1])
            engine.backward(loss_of(engine, batch))
            engine.step()
            ends.append(copy.deepcopy(model.state_dict()))
        found[name] = all(torch.equal(ends[-1][key], ends[2 * STEPS - 1][key]) for key in ends[-1])
    return found


def test_a_state_in_memory_is_restored_on_all_ranks() -> None:
    """Rank 0 alone restored its share: the others began without momentum, in silence."""
    assert list(run_ranks(train_twice)) == [dict.fromkeys(OPTIMIZERS, True)] * 2


def test_parameters_that_were_not_stepped_together_are_refused() -> None:
    with pytest.raises(AssertionError, match="set the stage to 0"):
        run_ranks(load_unequal, size=1)
