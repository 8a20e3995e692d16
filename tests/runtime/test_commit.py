"""Committing goes on beside training, and nothing counts before it is done."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import toys
from distributed import run_ranks
from trial_runtime import core, pytorch
from trial_runtime.pytorch._checkpoints import manifest, staging
from trial_runtime.pytorch._checkpoints.commit import Commit
from trial_runtime.pytorch._checkpoints.store import CheckpointStore


class Uploads(pytorch.PyTorchCallback):
    """Notes when checkpoints count, and that they are then whole."""

    def __init__(self, trial: Any, folder: Path) -> None:
        self.trial = trial
        self.folder = folder
        self.seen: list[tuple[int, int]] = []

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        assert (self.folder / uuid / "manifest.json").is_file()
        assert (self.folder / "latest").read_text() == f"{uuid}\n"
        self.seen.append((int(uuid.split("-")[0]), self.trial.batches))


def watching(kind: type, folder: Path, act: Any = None) -> Any:
    """The trial with a list ``seen`` of (batches of a checkpoint, batches when it counted)."""

    class Trial(kind):  # type: ignore[misc]
        batches = 0

        def build_callbacks(self) -> dict[str, Any]:
            self.uploads = Uploads(self, folder / "checkpoints")
            type(self).seen = self.uploads.seen
            return {"uploads": self.uploads}

        def train_batch(self, *args: Any, **kwargs: Any) -> Any:
            type(self).batches += 1
            if act is not None:
                act(self)
            return super().train_batch(*args, **kwargs)

    return Trial


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Hashing waits for this event."""
    event, describe = threading.Event(), manifest.describe

    def waiting(path: Path, sync: bool = False) -> dict[str, Any]:
        assert event.wait(100)
        return describe(path, sync)

    monkeypatch.setattr(manifest, "describe", waiting)
    return event


@pytest.fixture
def held_until_awaited(held: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashing waits until somebody waits for it."""
    result = Commit.result

    def releasing(commit: Commit) -> None:
        assert not commit.done
        held.set()
        result(commit)
        held.clear()

    monkeypatch.setattr(Commit, "result", releasing)


def test_training_continues_while_a_checkpoint_is_hashed(held: threading.Event, tmp_path: Path) -> None:
    def act(trial: Any) -> None:
        if trial.batches == 4:
            assert not (tmp_path / "checkpoints" / "latest").exists()
            held.set()

    kind = watching(toys.SimplePT, tmp_path, act)
    periods = {"checkpoint_period": pytorch.Batch([2]), "reporting_period": pytorch.Batch(1)}
    toys.fit(kind, {}, tmp_path, max_length=pytorch.Batch(6), **periods)
    assert [saved for saved, _ in kind.seen] == [2, 6]
    assert kind.seen[0][1] >= 4


@pytest.mark.usefixtures("held_until_awaited")
def test_the_next_save_waits_for_the_former(tmp_path: Path) -> None:
    kind = watching(toys.SimplePT, tmp_path)
    toys.fit(kind, {}, tmp_path, max_length=pytorch.Batch(4), checkpoint_period=pytorch.Batch(1))
    assert [saved for saved, _ in kind.seen] == [1, 2, 3, 4]
    assert [counted for _, counted in kind.seen] == [2, 3, 4, 4]


@pytest.mark.usefixtures("held_until_awaited")
@pytest.mark.parametrize("leaving", [ValueError("of the trial"), SystemExit(3), KeyboardInterrupt()])
def test_whatever_ends_training_the_checkpoint_under_way_is_committed(leaving: BaseException, tmp_path: Path) -> None:
    def act(trial: Any) -> None:
        if trial.batches == 3:
            raise leaving

    with pytest.raises(type(leaving)):
        toys.fit(
            watching(toys.SimplePT, tmp_path, act),
            {},
            tmp_path,
            max_length=pytorch.Batch(4),
            checkpoint_period=pytorch.Batch(2),
        )
    assert (tmp_path / "checkpoints" / "latest").read_text().startswith("00000002-")


@pytest.mark.usefixtures("held_until_awaited")
def test_a_signal_saves_after_the_checkpoint_under_way(tmp_path: Path) -> None:
    def act(trial: Any) -> None:
        if trial.batches == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    kind = watching(toys.SimplePT, tmp_path, act)
    with pytest.raises(SystemExit) as left:
        toys.fit(kind, {}, tmp_path, max_length=pytorch.Batch(9), checkpoint_period=pytorch.Batch(2))
    assert left.value.code == 143
    assert [saved for saved, _ in kind.seen] == [2, 3]


def fails_on_rank_1(folder: Path) -> tuple[str, int]:
    """What is raised, and after how many batches, when rank 1 cannot put the second checkpoint on its disk."""
    describe = manifest.describe

    def failing(path: Path, sync: bool = False) -> dict[str, Any]:
        if torch.distributed.get_rank() == 1 and "00000002-" in str(path):
            raise OSError(28, "No space left on device")
        return describe(path, sync)

    manifest.describe = failing
    kind = watching(toys.SimpleDS, folder)
    try:
        with pytest.raises(RuntimeError) as error:
            periods = {"checkpoint_period": pytorch.Batch(1), "reporting_period": pytorch.Batch(1)}
            toys.fit(kind, {"stage": 1}, folder, max_length=pytorch.Batch(9), **periods)
    finally:
        manifest.describe = describe
    assert [saved for saved, _ in kind.seen] == [1]
    rest = toys.fit(toys.SimpleDS, {"stage": 1}, folder, max_length=pytorch.Batch(2), latest_checkpoint="latest")
    assert not rest.training or len(rest.training) == 1  # from the first one
    return str(error.value), kind.batches


def test_an_error_beside_training_is_one_error_on_all_ranks_at_a_boundary(tmp_path: Path) -> None:
    first, second = run_ranks(fails_on_rank_1, tmp_path)
    assert first == second
    message, batches = first
    assert "rank 1: OSError(28, 'No space left on device')" in message
    assert "Earlier checkpoints are untouched" in message
    assert batches == 3


def test_what_a_killed_run_left_is_swept_and_what_another_writes_stays(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, core.DummyDistributedContext())
    left, written, foreign = (tmp_path / f".tmp-{name}" for name in ("00000001-aaaaaaaa", "00000002-bbbbbbbb", "mine"))
    for folder in (left, written, foreign):
        folder.mkdir()
        (folder / "weights").write_text("")
    descriptor = os.open(written, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    store.save("00000003-cccccccc", lambda _: None, {}).result()
    os.close(descriptor)
    assert not left.exists()
    assert written.exists()
    assert foreign.exists()
    staging.sweep(tmp_path)
    assert not written.exists()


def test_two_runs_commit_to_one_directory_at_the_same_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stores = [CheckpointStore(tmp_path, core.DummyDistributedContext()) for _ in range(2)]
    written, write_synced = threading.Barrier(2), manifest.write_synced

    def both(path: Path, text: str) -> None:
        write_synced(path, text)
        if path.name != manifest.MANIFEST:
            written.wait(100)  # both have written what shall become the file "latest"

    monkeypatch.setattr(manifest, "write_synced", both)
    names = ["00000001-aaaaaaaa", "00000002-bbbbbbbb"]
    for commit in [store.save(name, lambda _: None, {}) for store, name in zip(stores, names, strict=True)]:
        commit.result()
    assert (tmp_path / "latest").read_text().strip() in names
    assert sorted(path.name for path in tmp_path.iterdir()) == [*names, "latest"]


def test_files_are_shared_by_their_bytes() -> None:
    assert manifest.shares({"a": 5, "b": 9, "c": 4, "d": 1}, 2) == [["b", "d"], ["a", "c"]]
