"""Object collectives among ranks: over torch.distributed, and among threads over a store."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest
import torch.distributed as dist
from distributed import run_ranks
from ports import free_port
from trial_runtime import core
from trial_runtime._cluster_info import SECRET_VARIABLE
from trial_runtime.core._object_collectives import StoreCollectives


def in_threads(size: int, work: Callable[[int], Any]) -> list[Any]:
    """What ``work(rank)`` returns in each of ``size`` threads."""
    results: list[Any] = [None] * size

    def run(rank: int) -> None:
        try:
            results[rank] = work(rank)
        except BaseException as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200)
    return results


def context(rank: int, nodes: int, local_size: int, port: int) -> core.DistributedContext:
    return core.DistributedContext(
        rank=rank,
        size=nodes * local_size,
        local_rank=rank % local_size,
        local_size=local_size,
        cross_rank=rank // local_size,
        cross_size=nodes,
        chief_ip="localhost",
        pub_port=port,
    )


def every_collective(ranks: core.DistributedContext) -> dict[str, Any]:
    rank = ranks.rank
    return {
        "broadcast": ranks.broadcast(rank),
        "broadcast_local": ranks.broadcast_local(rank),
        "gather": ranks.gather(rank),
        "gather_local": ranks.gather_local(rank),
        "allgather": ranks.allgather({"rank": rank}),
        "allgather_local": ranks.allgather_local(rank),
    }


def expected(rank: int, nodes: int, local_size: int) -> dict[str, Any]:
    size, first = nodes * local_size, rank - rank % local_size
    own_node = list(range(first, first + local_size))
    return {
        "broadcast": 0,
        "broadcast_local": first,
        "gather": list(range(size)) if rank == 0 else None,
        "gather_local": own_node if rank == first else None,
        "allgather": [{"rank": other} for other in range(size)],
        "allgather_local": own_node,
    }


@pytest.mark.parametrize(("nodes", "local_size"), [(1, 1), (1, 3), (3, 1), (2, 2)])
def test_ranks_without_torch_distributed_meet_at_the_chief(
    nodes: int, local_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(SECRET_VARIABLE, "a secret")
    port, size = free_port(), nodes * local_size

    def work(rank: int) -> Any:
        with context(rank, nodes, local_size, port) as ranks:
            first = every_collective(ranks)
            again = every_collective(ranks)
            with ranks._with_separate_groups() as others:
                assert others.allgather(rank) == list(range(size))
            return first if first == again else (first, again)

    with mock.patch("torch.distributed.is_initialized", return_value=False):
        assert in_threads(size, work) == [expected(rank, nodes, local_size) for rank in range(size)]


def test_ranks_with_torch_distributed_use_it() -> None:
    assert run_ranks(_over_torch) == [expected(rank, 1, 2) for rank in range(2)]


def _over_torch() -> dict[str, Any]:
    with core.DistributedContext.from_torch_distributed() as ranks:
        assert ranks.group() is not None
        return every_collective(ranks)


@pytest.mark.parametrize(
    ("maker", "names"),
    [
        ("from_torch_distributed", ("LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")),
        ("from_deepspeed", ("LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")),
        ("from_deepspeed", ("LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")),
    ],
)
def test_launchers_describe_ranks_in_their_own_words(maker: str, names: tuple[str, ...]) -> None:
    env = {"RANK": "5", "WORLD_SIZE": "6", "LOCAL_RANK": "1", **dict(zip(names, ("2", "2", "3"), strict=True))}
    env["DET_CHIEF_IP"] = "10.0.0.1"
    with (
        mock.patch.dict(os.environ, env, clear=True),
        mock.patch("torch.distributed.is_initialized", return_value=False),
    ):
        ranks = getattr(core.DistributedContext, maker)()
    assert (ranks.rank, ranks.size, ranks.local_rank, ranks.local_size) == (5, 6, 1, 2)
    assert (ranks.cross_rank, ranks.cross_size, ranks.chief_ip) == (2, 3, "10.0.0.1")
    assert (ranks.get_rank(), ranks.get_size(), ranks.get_local_rank(), ranks.get_num_agents()) == (5, 6, 1, 3)


def test_horovod_describes_ranks_too() -> None:
    hvd = mock.Mock(**{
        f"{name}.return_value": value
        for name, value in [
            ("rank", 1), ("size", 2), ("local_rank", 1), ("local_size", 2), ("cross_rank", 0), ("cross_size", 1)
        ]
    })  # fmt: skip
    ranks = core.DistributedContext.from_horovod(hvd)
    assert (ranks.rank, ranks.size, ranks.local_rank, ranks.cross_size) == (1, 2, 1, 1)


def test_a_process_that_nobody_launched_reports_what_to_do() -> None:
    with (
        mock.patch.dict(os.environ, {}, clear=True),
        mock.patch("torch.distributed.is_initialized", return_value=False),
        pytest.raises(ValueError, match=r"RANK and WORLD_SIZE in the environment\. Start the script with torchrun"),
    ):
        core.DistributedContext.from_torch_distributed()


@pytest.mark.parametrize(
    ("changed", "error"),
    [({"local_rank": None}, "must all be given"), ({"rank": 4}, r"rank must be in 0..size-1, got rank=4 and size=2")],
)
def test_numbers_that_contradict_each_other_are_refused(changed: dict[str, Any], error: str) -> None:
    numbers = {"rank": 0, "size": 2, "local_rank": 0, "local_size": 2, "cross_rank": 0, "cross_size": 1}
    with pytest.raises(ValueError, match=error):
        core.DistributedContext(**{**numbers, **changed})


def test_ranks_on_several_nodes_need_something_to_meet_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with (
        mock.patch("torch.distributed.is_initialized", return_value=False),
        pytest.raises(AssertionError, match="give the address of rank 0 as chief_ip"),
    ):
        core.DistributedContext(rank=0, size=2, local_rank=0, local_size=1, cross_rank=0, cross_size=2)


def test_sharing_gradients_needs_torch_distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with mock.patch("torch.distributed.is_initialized", return_value=False):
        ranks = context(0, 1, 2, free_port())
        with pytest.raises(ValueError, match="Start the ranks with torchrun"):
            ranks.group()


def test_one_process_is_its_own_chief() -> None:
    ranks = core.DummyDistributedContext()
    assert every_collective(ranks) == expected(0, 1, 1)


class Hostile:
    """A pickle that makes a file when it is loaded."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.file),)


def test_an_object_that_a_stranger_puts_into_the_store_is_never_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, "a secret")
    store: Any = dist.HashStore()  # type: ignore[attr-defined]
    ranks = [StoreCollectives(store, "own", rank, 2) for rank in range(2)]
    content = pickle.dumps(Hostile(tmp_path / "ran"))
    monkeypatch.setenv(SECRET_VARIABLE, "another secret")
    guessed = StoreCollectives(store, "own", 1, 2)._seal.signed(content, 0, 1)
    replayed = ranks[1]._seal.signed(content, 1, 1)  # of another round
    for planted in (content, guessed, replayed, b""):
        store.set("own/0/1", planted)
        ranks[0]._round = 0
        with pytest.raises(RuntimeError, match="A message from rank 1 has a wrong signature"):
            ranks[0].allgather(0)
    assert not (tmp_path / "ran").exists()
    store.set("own/0/1", ranks[1]._seal.signed(content, 0, 1))
    store.set("own/0/left/1", b"")
    ranks[0]._round = 0
    ranks[0].allgather(0)
    assert (tmp_path / "ran").exists()  # with the right signature the same bytes do run


def test_ranks_on_several_machines_need_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", SECRET_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    with mock.patch("torch.distributed.is_initialized", return_value=False):
        ranks = context(0, 2, 1, free_port())
        with pytest.raises(ValueError, match=f"environment variable {SECRET_VARIABLE}"):
            ranks.allgather(1)


def test_the_store_of_one_machine_listens_on_loopback_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    port = free_port()

    def work(rank: int) -> set[str]:
        with context(rank, 1, 2, port) as ranks:
            ranks.barrier()
            sockets = psutil.Process().net_connections("tcp")
            found = {s.laddr.ip for s in sockets if s.status == psutil.CONN_LISTEN and s.laddr.port == port}
            ranks.barrier()
            return found

    with mock.patch("torch.distributed.is_initialized", return_value=False):
        assert in_threads(2, work) == [{"127.0.0.1"}] * 2


def with_another_secret(folder: Path) -> str:
    rank = dist.get_rank()
    os.environ[SECRET_VARIABLE] = f"secret {rank}"
    context = core.DistributedContext.from_torch_distributed()
    with pytest.raises(RuntimeError) as error:
        context.allgather(Hostile(folder / f"ran {rank}"))
    return str(error.value)


def test_objects_over_a_process_group_are_signed(tmp_path: Path) -> None:
    first, second = run_ranks(with_another_secret, tmp_path)
    assert "A message from rank 1 has a wrong signature" in first
    assert "A message from rank 0 has a wrong signature" in second
    assert [path.name for path in tmp_path.iterdir() if path.name in ("ran 0", "ran 1")] == []


def shared_objects() -> list[Any]:
    os.environ[SECRET_VARIABLE] = "the same"
    rank = dist.get_rank()
    context = core.DistributedContext.from_torch_distributed()
    return [context.allgather("x" * 10**rank), context.broadcast({"rank": rank}), context.allgather(None)]


def test_objects_of_any_size_arrive_with_the_same_secret() -> None:
    wanted = [["x", "x" * 10, "x" * 100], {"rank": 0}, [None] * 3]
    assert run_ranks(shared_objects, size=3) == [wanted] * 3
