"""``trial_runtime.plain`` on several ranks: numbers, decisions, random states and data on which they agree."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distributed import run_ranks


def agreed() -> dict[str, object]:
    import torch.distributed as dist
    from torch.utils.data import DataLoader
    from trial_runtime import plain
    from trial_runtime.plain import count_samples, mean_over_ranks, rank_0_decides, rank_0_text, shard, share_weights

    rank = dist.get_rank()
    whole: DataLoader[int] = DataLoader(range(5))  # type: ignore[arg-type]
    norm = torch.nn.BatchNorm1d(2)
    for tensor in norm.state_dict().values():
        tensor.fill_(rank)
    half = mean_over_ranks(torch.tensor([rank, float("nan") if rank else 1.0], dtype=torch.float16))
    return {
        "number": mean_over_ranks(rank),
        "tensor": half.tolist(),
        "array": mean_over_ranks(np.full((1, 2), rank, dtype=np.float32)),
        "type": half.dtype,
        "decision": rank_0_decides([] if rank else [0]),
        "any and all": (plain.any_rank([0] * rank), plain.all_ranks(rank), plain.any_rank(0), plain.all_ranks("a")),
        "text": rank_0_text(f"of rank {rank}"),
        "weights": [tensor.sum().item() for tensor in share_weights(norm).state_dict().values()],
        "samples": (count_samples(whole), count_samples(shard(whole))),
    }


def test_ranks_agree_on_means_and_on_rank_0s_decision() -> None:
    first, second = run_ranks(agreed)
    assert first["number"] == second["number"] == 0.5
    assert first["any and all"] == second["any and all"] == (True, False, False, True)
    assert first["text"] == second["text"] == "of rank 0"
    assert first["samples"] == second["samples"] == (5, 3)
    assert first["weights"] == second["weights"] == [0, 0, 0, 0, 0]
    assert first["type"] is second["type"] is torch.float16
    for result in (first, second):
        assert result["array"].tolist() == [[0.5, 0.5]] and result["array"].dtype == np.float32
        half, not_a_number = result["tensor"]
        assert (half, result["decision"]) == (0.5, True)
        assert not_a_number != not_a_number


def test_one_rank_keeps_its_own() -> None:
    from trial_runtime.plain import mean_over_ranks, rank_0_decides

    loss = torch.tensor(0.1, requires_grad=True)
    assert mean_over_ranks(loss) is loss
    assert mean_over_ranks(0.1) == 0.1
    assert rank_0_decides(loss > 0) is True


def draws(seed: int) -> tuple[list[float], list[float]]:
    import torch.distributed as dist
    from torch.utils.data import DataLoader, random_split
    from trial_runtime.plain import shard
    from trial_runtime.plain._random_state import share_random_state

    for set_seed in (torch.manual_seed, random.seed, np.random.seed):
        set_seed(seed + dist.get_rank())
    share_random_state()
    drawn = [random.random(), float(np.random.rand()), torch.rand(()).item(), random.gauss(0, 1)]
    data: Any = torch.arange(8.0)
    train = random_split(data, [6, 2])[0]
    return drawn, [batch.item() for batch in shard(DataLoader(train, batch_size=1, shuffle=True))]


def test_ranks_that_set_no_seed_draw_and_divide_alike() -> None:
    (drawn, share), (also_drawn, other_share) = run_ranks(draws, 3)
    assert drawn == also_drawn
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    assert drawn[:3] == pytest.approx([random.random(), np.random.rand(), torch.rand(()).item()], abs=0)
    assert len({*share, *other_share}) == 6  # both have the same six of eight, and no sample twice


def made_data(folder: Path) -> tuple[bool, float, float]:
    import torch.distributed as dist
    from trial_runtime.plain import rank_0_first

    np.random.seed(0)
    path = folder / "data"
    has_made = False
    with rank_0_first():
        if not path.exists():
            has_made = True
            path.write_text("half")
            time.sleep(0.1)  # for a rank that does not wait to read the half of it
            path.write_text(f"{np.random.rand()} of rank {dist.get_rank()}")
    number, _, rank = path.read_text().partition(" of rank ")
    assert rank == "0"
    return has_made, float(number), float(np.random.rand())


def test_rank_0_makes_data_that_all_ranks_read(tmp_path: Path) -> None:
    made, found = run_ranks(made_data, tmp_path)
    assert (made[0], found[0]) == (True, False)
    assert made[1:] == found[1:]


def test_a_wait_for_a_rank_that_fetches_is_no_operation_of_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    from trial_runtime.plain import _rank_zero

    stores: Any = torch.distributed
    store, barriers = stores.HashStore(), threading.Semaphore(0)
    monkeypatch.setattr("torch.distributed.distributed_c10d._get_default_store", lambda: store)
    monkeypatch.setattr("torch.distributed.barrier", barriers.release)
    monkeypatch.setattr(_rank_zero, "world_size", lambda: 2)
    monkeypatch.setattr(_rank_zero, "_meetings", itertools.repeat(0))  # the same one of both ranks
    waiting = threading.Thread(target=_rank_zero.wait_for_all_ranks, daemon=True)
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive() and not barriers.acquire(blocking=False)
    _rank_zero.wait_for_all_ranks()
    waiting.join(60)
    assert barriers.acquire(timeout=60) and barriers.acquire(timeout=60)


def test_ranks_start_for_a_text_that_an_imported_module_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    from trial_runtime.plain import _rank_zero

    started: list[str] = []
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: False)
    monkeypatch.setattr(_rank_zero, "init_distributed", lambda: started.append(os.environ["RANK"]))
    monkeypatch.setenv("RANK", "1")
    for size in ("1", "2"):
        monkeypatch.setenv("WORLD_SIZE", size)
        _rank_zero.rank_0_text("now")
    assert started == ["1"]


def shares_of_a_class() -> tuple[object, ...]:
    from torch.utils.data import DataLoader, SubsetRandomSampler
    from trial_runtime.plain import shard

    class Loader(DataLoader[int]):
        def __init__(self, count: int) -> None:
            self.n_samples = count
            super().__init__(range(count), batch_size=2, sampler=SubsetRandomSampler(range(4)))  # type: ignore[arg-type]

        def __iter__(self) -> Any:
            return (-batch for batch in super().__iter__())

        def validation(self) -> DataLoader[int]:
            return DataLoader(self.dataset, batch_size=1, sampler=range(4, self.n_samples))

    class Endless(DataLoader[int]):
        def __init__(self) -> None:
            super().__init__(range(4))  # type: ignore[arg-type]
            self.iterator = super().__iter__()

    torch.manual_seed(0)
    share = shard(Loader(6))
    with pytest.raises(ValueError, match="Endless keeps an iterator over all data"):
        shard(Endless())
    assert isinstance(share, Loader) and shard(share) is share and len(share) == 1
    batches = [batch.tolist() for _ in range(2) for batch in share]
    return batches, [batch.item() for batch in share.validation()]


def test_a_share_of_a_loader_keeps_its_class() -> None:
    (batches, rest), (other_batches, other_rest) = run_ranks(shares_of_a_class)
    for mine, theirs in zip(batches, other_batches, strict=True):
        assert sorted((*mine, *theirs)) == [-3, -2, -1, 0]
    assert rest == other_rest == [4, 5]


def shares_of_an_endless_sampler() -> list[list[int]]:
    import torch.distributed as dist
    from torch.utils.data import DataLoader, Sampler
    from trial_runtime.plain import shard

    class Endless(Sampler[int]):
        def __iter__(self) -> Any:
            while True:
                yield from np.random.permutation(4).tolist()

    np.random.seed(dist.get_rank())  # as after a validation on one rank
    loader: DataLoader[int] = DataLoader(range(4), batch_size=2, sampler=Endless())  # type: ignore[arg-type]
    return [batch.tolist() for batch, _ in zip(shard(loader), range(3), strict=False)]


def test_ranks_divide_what_an_endless_sampler_draws_on_rank_0() -> None:
    batches, other_batches = run_ranks(shares_of_an_endless_sampler)
    for mine, theirs in zip(batches, other_batches, strict=True):
        assert sorted((*mine, *theirs)) == [0, 1, 2, 3]


def shares_of_composed_batches() -> list[list[int]]:
    from torch.utils.data import DataLoader, Sampler
    from trial_runtime.plain import shard

    class Pairs(Sampler[int]):
        def __iter__(self) -> Any:
            return iter(range(11))

        def __len__(self) -> int:
            return 11

    loader: DataLoader[int] = DataLoader(range(11), batch_size=2, sampler=Pairs())  # type: ignore[arg-type]
    share = shard(loader)
    assert len(share) == 3
    return [batch.tolist() for batch in share]


def test_batches_that_a_sampler_composes_stay_together() -> None:
    assert run_ranks(shares_of_composed_batches) == [[[0, 1], [4, 5], [8, 10]], [[2, 3], [6, 7], [9, 0]]]


def error_of_other_data() -> str:
    import torch.distributed as dist
    from torch.utils.data import DataLoader
    from trial_runtime.errors import InvalidExperimentException
    from trial_runtime.plain import shard

    found = range(9 - dist.get_rank())  # as behind a download that failed
    loader: DataLoader[int] = DataLoader(found, batch_size=2)  # type: ignore[arg-type]
    try:
        next(iter(shard(loader)))
    except InvalidExperimentException as error:
        return str(error)
    return ""


def test_ranks_that_have_other_numbers_of_samples_raise_an_error_on_each() -> None:
    first, second = run_ranks(error_of_other_data)
    assert "this one, rank 0, has 9:" in first
    assert "rank 0, which has 9; this one, rank 1, has 8:" in second


def own_processes() -> tuple[str, str, str]:
    from trial_runtime.plain import init_distributed

    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    init_distributed()
    return os.environ["RANK"], os.environ["LOCAL_RANK"], os.environ["WORLD_SIZE"]


def test_ranks_that_a_script_has_started_itself_keep_their_numbers() -> None:
    """Each took itself for rank 0, on the first GPU."""
    assert run_ranks(own_processes) == [("0", "0", "2"), ("1", "1", "2")]
