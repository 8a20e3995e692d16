"""``trial_runtime.plain``: ranks that a launcher starts, and loaders that divide their data themselves."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, SequentialSampler, TensorDataset
from trial_runtime._ranks import rank_variables
from trial_runtime.errors import InvalidExperimentException
from trial_runtime.plain import _distributed, _loader, run_worker


def test_the_function_of_one_rank_is_called_once_as_in_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    found: list[tuple[object, ...]] = []
    state = torch.get_rng_state()
    try:
        run_worker(lambda *given: found.append((*given, torch.rand(()).item())), args=("a",), nprocs=2)
    finally:
        torch.set_rng_state(state)
    assert found == [(1, "a", torch.rand((), generator=torch.Generator()).item())]


@pytest.mark.parametrize("name", ["LOCAL_WORLD_SIZE", "LOCAL_SIZE"])
def test_another_number_of_ranks_than_the_script_expects_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setenv(name, "2")
    with pytest.raises(
        InvalidExperimentException, match="the number of ranks on this machine is 4 by the script's own"
    ):
        run_worker(print, nprocs=4)


@pytest.mark.parametrize(
    ("given", "what"), [({"world_size": 8}, "the world size is 8"), ({"rank": 1}, "this rank is 1")]
)
def test_ranks_that_the_script_counts_otherwise_are_refused(
    given: dict[str, Any], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(InvalidExperimentException, match=what):
        _distributed.init_distributed(**given)


def test_a_script_that_sets_another_world_size_after_its_rank_started_alone_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_distributed, "_LAUNCHED", {})
    monkeypatch.setattr(_distributed, "_is_started", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    monkeypatch.setenv("WORLD_SIZE", "1")
    _distributed.init_distributed()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InvalidExperimentException, match="the world size is 2 by the script's own"):
        _distributed.init_distributed()


@pytest.mark.parametrize(("port", "is_left"), [("1234", True), ("5678", False)])
def test_a_command_of_a_script_without_a_launcher_is_no_rank_of_that(
    port: str, is_left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It met nobody: the address was in use. A launcher that the script runs gives its ranks another port."""
    for name, value in {**rank_variables(0, 1, 1234), _distributed._ALONE: f"{os.getppid()}:1234"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", port)
    _distributed._leave_other_script()
    assert ("RANK" not in os.environ) == ("MASTER_PORT" not in os.environ) == is_left
    monkeypatch.setenv(_distributed._ALONE, f"{os.getpid()}:{port}")
    monkeypatch.setenv("RANK", "0")
    _distributed._leave_other_script()
    assert os.environ["RANK"] == "0"


def test_a_loader_whose_sampler_divides_the_data_is_known() -> None:
    data = TensorDataset(torch.zeros(8))
    divided: DistributedSampler[Any] = DistributedSampler(data, num_replicas=2, rank=0)
    assert _loader._is_divided(DataLoader(data, sampler=divided))
    assert _loader._is_divided(DataLoader(data, batch_sampler=BatchSampler(divided, 2, drop_last=True)))
    assert not _loader._is_divided(DataLoader(data, batch_sampler=BatchSampler(SequentialSampler(data), 2, False)))


class CountingSampler(SequentialSampler):
    """A sampler that divides its data by itself, as detectron2's and BasicSR's do."""

    def __init__(self, data: TensorDataset, world: int) -> None:
        super().__init__(data)
        self._rank, self._world_size = 0, world

    def __iter__(self) -> Iterator[int]:
        yield from range(self._rank, len(self), self._world_size)


class CountedBatches(BatchSampler):
    """Batches of another sampler of batches, as maskrcnn-benchmark counts them."""

    def __init__(self, batch_sampler: BatchSampler) -> None:
        self.batch_sampler = batch_sampler

    def __iter__(self) -> Iterator[list[int]]:
        yield from self.batch_sampler


@pytest.mark.parametrize(("world", "is_divided"), [(2, True), (1, False)])
def test_a_sampler_that_counts_ranks_itself_is_known_behind_others(world: int, is_divided: bool) -> None:
    data = TensorDataset(torch.zeros(8))
    sampler = CountingSampler(data, world)
    assert _loader._is_divided(DataLoader(data, sampler=sampler)) is is_divided
    batches = CountedBatches(BatchSampler(sampler, 2, drop_last=True))
    assert _loader._is_divided(DataLoader(data, batch_sampler=batches)) is is_divided


def test_a_share_without_a_whole_batch_is_refused_where_drop_last_would_leave_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each rank trained no batch at all, and the script ended as if it had."""
    monkeypatch.setattr(_loader, "_are_ranks_to_start", lambda: False)
    monkeypatch.setattr(_loader, "world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    data = TensorDataset(torch.zeros(9))
    with pytest.raises(ValueError, match="share of 9 samples has 5, and drop_last leaves out all of them"):
        _loader.shard(DataLoader(data, batch_size=8, drop_last=True))
    assert len(_loader.shard(DataLoader(data, batch_size=8))) == 1
    assert len(_loader.shard(DataLoader(data, batch_size=5, drop_last=True))) == 1
    assert len(_loader.shard(DataLoader(data, batch_size=16, drop_last=True))) == 0


def test_no_loader_has_no_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several ranks ended with an error where a function found nothing to train on, and returned None."""
    monkeypatch.setattr(_loader, "_are_ranks_to_start", lambda: False)
    monkeypatch.setattr(_loader, "world_size", lambda: 2)
    assert _loader.shard(None) is None


@pytest.mark.parametrize(("world", "is_worker", "starts"), [("2", False, 1), ("1", False, 0), ("2", True, 0)])
def test_a_loader_that_is_made_before_the_ranks_start_starts_them(
    world: str, is_worker: bool, starts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", world)
    started: list[bool] = []
    monkeypatch.setattr(_loader, "parent_process", lambda: object() if is_worker else None)
    monkeypatch.setattr(_loader, "init_distributed", lambda: started.append(True))
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)  # an earlier test may have
    monkeypatch.setattr(_loader, "world_size", lambda: 1)
    _loader.shard(DataLoader(TensorDataset(torch.zeros(8))))
    assert len(started) == starts


@pytest.mark.parametrize(
    ("asked", "started"), [(None, "cpu:gloo,cuda:nccl"), ("gloo", "cpu:gloo,cuda:nccl"), ("NCCL", "nccl")]
)
def test_each_rank_has_its_own_gpu_before_the_ranks_meet(
    asked: str | None, started: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name cuda is the rank's own device from then on. Recorded, as most machines of the tests have no GPU.

    NCCL alone crashed where ranks share tensors on the CPU.
    """
    calls: list[tuple[str, object]] = []
    variables = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for name in ("apply_to_process", "applied_to_run"):
        monkeypatch.setattr(_distributed, name, contextlib.nullcontext)
    monkeypatch.setattr(_distributed, "_PATCHES", [])
    monkeypatch.setattr(_distributed, "_LAUNCHED", variables)
    monkeypatch.setattr("atexit.register", lambda _: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: calls.append(("device", device)))
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *given, **more: calls.append((*given, more)))
    monkeypatch.setattr("deepspeed.init_distributed", lambda **given: calls.append(("engine", given["dist_backend"])))
    _distributed.init_distributed(4, 3, backend=asked, share_random_state=False, timeout=timedelta(hours=2))
    assert calls == [("device", 1), (started, {"timeout": timedelta(hours=2)}), ("engine", started)]


def test_a_process_of_a_loader_that_runs_the_script_s_top_is_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited for the ranks, which waited for its batches: ``spawn`` and ``forkserver`` import the script again."""
    groups: list[dict[str, Any]] = []
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    for name in ("apply_to_process", "applied_to_run"):
        monkeypatch.setattr(_distributed, name, contextlib.nullcontext)
    monkeypatch.setattr(_distributed, "_PATCHES", [])
    monkeypatch.setattr(_distributed, "_LAUNCHED", {"RANK": "1", "WORLD_SIZE": "2"})
    monkeypatch.setattr("atexit.register", lambda _: None)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda _, **more: groups.append(more))
    monkeypatch.setattr("deepspeed.init_distributed", lambda **_: None)
    _distributed.init_distributed(share_random_state=False)
    assert [(one["rank"], one["world_size"]) for one in groups] == [(0, 1)]
    assert not _distributed.is_main_rank()


@pytest.mark.parametrize(("backend", "ends"), [("gloo", 1), ("nccl", 0), ("cpu:gloo,cuda:nccl", 0)])
def test_a_rank_ends_gloos_threads_which_could_abort_its_process(
    backend: str, ends: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[bool] = []
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: backend)
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: ended.append(True))
    rests: list[float] = []
    monkeypatch.setattr("time.sleep", rests.append)
    _distributed._end_gloo()
    assert len(ended) == ends == 1 - len(rests)
