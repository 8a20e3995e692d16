"""A run that is killed at any write of a checkpoint resumes bitwise, on one rank and on two."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import toys
from distributed import run_ranks
from trial_runtime import pytorch

LENGTH, PERIOD = 4, 2  # the first checkpoint, and one that follows another
KINDS = {"pytorch": (toys.SimplePT, {}), "zero 1": (toys.SimpleDS, {"stage": 1})}


class Writes:
    """Counter of a rank's writes to checkpoints, at one of which it is killed."""

    def __init__(self, killed: tuple[int, int] | None) -> None:
        self.killed = killed
        self.count = 0
        self._save = torch.save

    def seen(self, event: str, arguments: Any) -> None:
        writes = event in ("os.mkdir", "os.rename", "os.remove") or (
            event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")
        )
        if writes and "checkpoints" in str(arguments[0]) and self._is_now():
            os.kill(os.getpid(), signal.SIGKILL)

    def save(self, content: Any, file: Any, *args: Any, **options: Any) -> None:
        if self._is_now():
            os.kill(os.getpid(), signal.SIGKILL)
        self._save(content, file, *args, **options)
        if self._is_now():  # in the middle of it
            os.truncate(file, Path(file).stat().st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    def _is_now(self) -> bool:
        self.count += 1
        return (current_rank(), self.count) == self.killed


def train(kind: str, folder: Path, killed: tuple[int, int] | None = None) -> Any:
    """Train or resume; with ``killed=(rank, at)`` that rank is killed at its ``at``-th write to a checkpoint.

    Returns:
        the final state, and the number of writes.
    """
    writes = Writes(killed)
    sys.addaudithook(writes.seen)
    torch.save = writes.save  # type: ignore[assignment] # writes in C++, which no audit hook sees
    trial, hparams = KINDS[kind]
    latest = "latest" if (folder / "checkpoints" / "latest").exists() or has_checkpoint(folder) else None
    outcome = toys.fit(
        trial,
        hparams,
        folder,
        max_length=pytorch.Batch(LENGTH),
        checkpoint_period=pytorch.Batch(PERIOD),
        latest_checkpoint=latest,
    )
    return {name: value.clone() for name, value in outcome.state.items()}, writes.count


def current_rank() -> int:
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


def has_checkpoint(folder: Path) -> bool:
    return any((folder / "checkpoints").glob("0*/manifest.json"))


def check_kill(kind: str, size: int, rank: int, at: int, folder: Path, wanted: Any) -> None:
    with pytest.raises(AssertionError, match=r"ended with (-9|137)|a rank failed"):
        run_ranks(train, kind, folder, (rank, at), size=size)
    results = run_ranks(train, kind, folder, size=size)
    for (state, _), (undisturbed, _) in zip(results, wanted, strict=True):
        assert state.keys() == undisturbed.keys()
        for name in state:
            assert torch.equal(state[name], undisturbed[name]), (kind, size, rank, at, name)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_rank_costs_nothing(kind: str, size: int, tmp_path: Path) -> None:
    wanted = run_ranks(train, kind, tmp_path / "undisturbed", size=size)
    rank = size - 1
    writes = wanted[rank][1]
    assert writes >= 2 * (LENGTH // PERIOD)  # two or more for each checkpoint
    for at in (writes // 2, writes) if size == 2 else (writes // 2,):
        check_kill(kind, size, rank, at, tmp_path / str(at), wanted)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("kind", "size", "step"), [("pytorch", 1, 1), ("zero 1", 1, 1), ("pytorch", 2, 3), ("zero 1", 2, 3)]
)
def test_a_rank_killed_at_any_write_costs_nothing(kind: str, size: int, step: int, tmp_path: Path) -> None:
    """The writes of each kind are the same on one rank and on two but for who makes them: every third one is enough."""
    wanted = run_ranks(train, kind, tmp_path / "undisturbed", size=size)
    for rank in range(size):
        for at in range(1, wanted[rank][1] + 1, step):
            check_kill(kind, size, rank, at, tmp_path / f"{rank}-{at}", wanted)
