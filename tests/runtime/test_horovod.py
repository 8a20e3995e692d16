"""determined.horovod.hvd over torch.distributed: the identity on one rank, Horovod's results on several."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from distributed import run_ranks
from trial_runtime.errors import NotProvidedError
from trial_runtime.horovod import hvd


def test_one_process_is_a_run_of_its_own() -> None:
    hvd.init()
    hvd.require_horovod_type("torch", "PyTorchTrial is in use")
    ranks = (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size())
    assert ranks == (0, 1, 0, 1, 0, 1)
    assert hvd.is_initialized()
    hvd.shutdown()


def test_on_one_rank_each_call_is_the_identity_on_a_new_tensor() -> None:
    tensor = torch.tensor([1.0, 2.0])
    for made in (hvd.allreduce(tensor, name="n"), hvd.allgather(tensor, "n"), hvd.broadcast(tensor, 0)):
        assert torch.equal(made, tensor)
        made.zero_()
    assert tensor.tolist() == [1.0, 2.0]
    assert hvd.allreduce_(tensor) is tensor and hvd.broadcast_(tensor, 0) is tensor
    assert hvd.broadcast_object({"a": 1}) == {"a": 1}
    assert hvd.allgather_object("x") == ["x"]


def test_wrong_operations_are_errors() -> None:
    tensor = torch.ones(1)
    with pytest.raises(ValueError, match="only one of them"):
        hvd.allreduce(tensor, average=True, op=hvd.Sum)
    with pytest.raises(ValueError, match=r"op must be hvd.Average or hvd.Sum, not 'Adasum'"):
        hvd.allreduce(tensor, op="Adasum")
    with pytest.raises(ValueError, match="for torch only, not for 'tensorflow'"):
        hvd.require_horovod_type("tensorflow", "TFKerasTrial is in use")
    message = "context.wrap_optimizer() or the engine shares the gradients"
    with pytest.raises(NotProvidedError, match=re.escape(message)):
        hvd.DistributedOptimizer(torch.optim.SGD([tensor], 0.1), named_parameters=[])


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (4, 3, 2, 2)])
def test_on_one_rank_synchronous_batch_norm_has_the_numbers_of_batch_norm(shape: tuple[int, ...]) -> None:
    plain: Any = {2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm1d, 4: torch.nn.BatchNorm2d}[len(shape)]
    one: Any = hvd.SyncBatchNorm(3, momentum=0.2)
    other, batch = plain(3, momentum=0.2), torch.randn(shape)
    for _ in range(2):
        assert torch.equal(one(batch), other(batch))
    assert torch.equal(one.running_mean, other.running_mean)
    assert torch.equal(one.eval()(batch), other.eval()(batch))


def collectives() -> dict[str, Any]:
    rank = hvd.rank()
    own = torch.tensor([1.0, 2.0]) * (rank + 1)
    kept = own.clone()
    in_place, sent = own.clone(), own.clone()
    hvd.allreduce_(in_place, op=hvd.Sum)
    hvd.broadcast_(sent, 1)
    results = {
        "ranks": (rank, hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()),
        "mean": hvd.allreduce(own, name="loss"),
        "sum": hvd.allreduce(own, average=False),
        "half": hvd.allreduce(own.half(), compression=hvd.Compression.fp16),
        "integers": hvd.allreduce(torch.tensor([3, 4]) + rank),
        "scalar": hvd.allreduce(torch.tensor(float(rank))),
        "transposed": hvd.allreduce((torch.arange(6.0).reshape(2, 3) + rank).t()),
        "in place": in_place,
        "gathered": hvd.allgather(torch.full((rank + 1, 2), float(rank))),
        "empty": hvd.allgather(torch.zeros(rank, 2)),
        "scalars": hvd.allgather(torch.tensor(rank)),
        "broadcast": hvd.broadcast(own, 1),
        "sent": sent,
        "object": hvd.broadcast_object({"rank": rank}, root_rank=1),
        "objects": hvd.allgather_object(rank),
        "unchanged": torch.equal(own, kept),
    }
    return {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in results.items()}


def test_on_two_ranks_tensors_are_reduced_gathered_and_broadcast() -> None:
    first, second = run_ranks(collectives)
    assert (first.pop("ranks"), second.pop("ranks")) == ((0, 2, 0, 2, 0, 1), (1, 2, 1, 2, 0, 1))
    assert first == second
    assert first == {
        "mean": [1.5, 3.0],
        "sum": [3.0, 6.0],
        "half": [1.5, 3.0],
        "integers": [3, 4],
        "scalar": 0.5,
        "transposed": [[0.5, 3.5], [1.5, 4.5], [2.5, 5.5]],
        "in place": [3.0, 6.0],
        "gathered": [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]],
        "empty": [[0.0, 0.0]],
        "scalars": [0, 1],
        "broadcast": [2.0, 4.0],
        "sent": [2.0, 4.0],
        "object": {"rank": 1},
        "objects": [0, 1],
        "unchanged": True,
    }


def gradients() -> dict[str, list[float]]:
    weight = hvd.rank() + 1.0
    found = {}
    calls: dict[str, Any] = {
        "mean": hvd.allreduce,
        "sum": lambda x: hvd.allreduce(x, average=False),
        "gathered": hvd.allgather,
        "broadcast": lambda x: hvd.broadcast(x, 0),
    }
    for name, call in calls.items():
        own = torch.tensor([1.0, 2.0], requires_grad=True)
        (call(own) * weight).sum().backward()
        assert own.grad is not None
        found[name] = own.grad.tolist()
    return found


def test_gradients_flow_through_the_calls() -> None:
    first, second = run_ranks(gradients)
    assert first == {"mean": [1.5, 1.5], "sum": [3.0, 3.0], "gathered": [3.0, 3.0], "broadcast": [3.0, 3.0]}
    assert second == first | {"broadcast": [0.0, 0.0]}


def same_start() -> tuple[list[float], float, float]:
    torch.manual_seed(hvd.rank())
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (hvd.rank() + 1), momentum=0.9)
    model(torch.randn(3, 2)).sum().backward()
    optimizer.step()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_parameters(model.named_parameters(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    values = torch.cat([value.detach().flatten().double() for value in model.state_dict().values()])
    momentum = sum(float(state["momentum_buffer"].sum()) for state in optimizer.state.values())
    return values.tolist(), float(optimizer.param_groups[0]["lr"]), momentum


def test_ranks_start_from_the_roots_parameters_and_optimizer_state() -> None:
    first, second = run_ranks(same_start)
    assert first == second
    assert first[1] == 0.1


def synchronous_batch_norm() -> str:
    with pytest.raises(ValueError) as raised:
        hvd.SyncBatchNorm(3)(torch.randn(4, 3))
    return str(raised.value)


def test_synchronous_batch_norm_on_several_ranks_needs_a_gpu() -> None:
    assert all("GPU" in message for message in run_ranks(synchronous_batch_norm))
