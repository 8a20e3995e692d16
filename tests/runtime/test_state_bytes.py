"""Bytes a parameter of the training state: the formula gives what really lives in each rank of a DeepSpeed engine."""

from __future__ import annotations

import gc
import itertools
import time
from typing import Any

import deepspeed
import pytest
import torch
from distributed import run_ranks
from ds_migrate.deepspeed_facts import optimizer_states, training_state
from torch import nn
from trial_runtime.pytorch import deepspeed as det_ds

WIDTH, DEPTH = 64, 24  # buffers for one layer are a 24th of the model
OPTIMIZERS: dict[str, dict[str, Any]] = {"SGD": {}, "SGD with momentum": {"momentum": 0.9}, "Adam": {}}
PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"bf16": {"enabled": True}},
    "autocast": {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}},
}
Case = tuple[int, str, str, str]
"""ZeRO stage, precision, optimizer, offload."""

# Every stage with every precision, and each of both with every optimizer.
PLAIN: list[Case] = [
    (stage, precision, list(OPTIMIZERS)[(stage + row) % 3], "none")
    for stage in range(4)
    for row, precision in enumerate(PRECISIONS)
]
OFFLOADED: list[Case] = [
    (1, "bf16", "Adam", "optimizer"),
    (2, "fp32", "SGD", "optimizer"),
    (3, "bf16", "SGD with momentum", "optimizer"),
    (3, "fp32", "Adam", "parameters"),
]


def config(stage: int, precision: str, offload: str) -> dict[str, Any]:
    zero: dict[str, Any] = {
        "stage": stage, "overlap_comm": False, "reduce_bucket_size": 1, "allgather_bucket_size": 1000,
        "stage3_prefetch_bucket_size": 0, "stage3_param_persistence_threshold": 0, "stage3_max_live_parameters": 0,
    }  # fmt: skip
    if offload != "none":
        zero["offload_optimizer"] = {"device": "cpu"}
    if offload == "parameters":
        zero["offload_param"] = {"device": "cpu"}
    return {
        "train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0.0, "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False, "zero_optimization": zero, **PRECISIONS[precision],
    }  # fmt: skip


def alive(parameters: list[nn.Parameter]) -> int:
    """The bytes of all tensors in this process; the garbage collector does not know a gradient nobody looked at."""
    found = {}
    for item in itertools.chain(gc.get_objects(), parameters):
        if type(item) in (torch.Tensor, nn.Parameter):
            for tensor in (item, item.grad if item.is_leaf else None):
                if tensor is not None and tensor.device.type == "cpu":
                    storage = tensor.untyped_storage()
                    found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


def counted(case: Case, enough: float) -> float:
    """The most bytes a parameter that are alive while a rank takes its second step.

    gloo's thread releases the buffer that it reduced some time after the reduction: more than ``enough`` is counted
    again for a while.
    """
    stage, precision, kind, offload = case
    gc.collect()
    gc.freeze()  # what is there already is not looked at
    before = alive([])
    net = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)])
    parameters = list(net.parameters())
    size = sum(parameter.numel() for parameter in parameters)
    optimizer = getattr(torch.optim, kind.split()[0])(parameters, lr=0.01, **OPTIMIZERS[kind])
    most = 0.0

    def count(*_: Any) -> None:
        nonlocal most
        deadline = time.monotonic() + 20
        while (found := (alive(parameters) - before) / size) > enough and time.monotonic() < deadline:
            time.sleep(0.01)
        most = max(most, found)

    with det_ds.init() as context:
        engine = deepspeed.initialize(model=net, optimizer=optimizer, config=config(stage, precision, offload))[0]
        det_ds.float32_outside(context.wrap_model_engine(engine))
        engine.backward(engine(torch.ones(1, WIDTH)).square().mean())
        engine.step()

        reduce = engine.allreduce_gradients

        def count_and_reduce(*args: Any, **kwargs: Any) -> Any:
            count()  # the end of backward
            return reduce(*args, **kwargs)

        engine.allreduce_gradients = count_and_reduce
        inner = engine.optimizer
        while hasattr(inner, "optimizer"):
            inner = inner.optimizer
        inner.register_step_pre_hook(count)
        engine.backward(engine(torch.ones(1, WIDTH)).square().mean())
        engine.step()
        engine.destroy()
    return most


def counted_all(cases: list[Case], buffers: float, ranks: int) -> list[float]:
    return [counted(case, expected(case, ranks) + buffers) for case in cases]


def expected(case: Case, ranks: int) -> float:
    stage, precision, kind, offload = case
    size = training_state(stage, precision, offload, optimizer_states(kind.split()[0], "momentum" in kind))
    return size.on_device(ranks) + size.on_host(ranks)


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), 2])  # one rank shards nothing
@pytest.mark.parametrize(("cases", "buffers"), [(PLAIN, 0.4), (OFFLOADED, 0.6)], ids=["plain", "offloaded"])
def test_the_formula_gives_the_bytes_that_are_alive(cases: list[Case], buffers: float, ranks: int) -> None:
    for found in run_ranks(counted_all, cases, buffers, ranks, size=ranks):
        wrong = {
            case: (bytes_alive, expected(case, ranks))
            for case, bytes_alive in zip(cases, found, strict=True)
            if not -0.01 <= bytes_alive - expected(case, ranks) <= buffers
        }
        assert not wrong
