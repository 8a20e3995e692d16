"""A checkpoint is whole or not there; a damaged one is refused on all ranks, by name."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import toys
from distributed import run_ranks
from trial_runtime import core, pytorch
from trial_runtime.errors import CheckpointStorageError, InvalidCheckpointException
from trial_runtime.pytorch._checkpoints.policy import CheckpointPolicy
from trial_runtime.pytorch._checkpoints.store import CheckpointStore


def store_in(folder: Path) -> CheckpointStore:
    return CheckpointStore(folder / "checkpoints", core.DummyDistributedContext())


def write(text: str) -> Any:
    def files(path: Path) -> None:
        (path / "model0").mkdir()
        (path / "model0" / "weights").write_text(text)
        (path / "rank_0").write_text(text)

    return files


def save_and_die(folder: Path, at: int) -> int:
    """Save a second checkpoint in a child that dies at its ``at``-th file operation; its exit code."""
    child = os.fork()
    if child == 0:
        count = 0

        def die(event: str, arguments: Any) -> None:
            nonlocal count
            if event in ("open", "os.mkdir", "os.rename", "os.remove") and str(folder) in str(arguments):
                count += 1
                if count == at:
                    os._exit(9)

        sys.addaudithook(die)
        try:
            store_in(folder).save("second", write("new"), {"progress": {"batches": 2}}).result()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_killed_at_any_file_operation_the_former_or_the_new_checkpoint_is_whole(tmp_path: Path) -> None:
    found = []
    for at in range(1, 100):
        folder = tmp_path / str(at)
        store_in(folder).save("first", write("old"), {"progress": {"batches": 1}}).result()
        code = save_and_die(folder, at)
        store = store_in(folder)
        path = store.find("latest")
        batches = store.verify(path)["progress"]["batches"]
        assert (path / "model0" / "weights").read_text() == {1: "old", 2: "new"}[batches]
        found.append(batches)
        store.save(
            "third", write("newest"), {"progress": {"batches": 3}}
        ).result()  # what is left over does not disturb
        if code == 0:
            break
        assert code == 9
    assert code == 0
    assert found == sorted(found)
    assert found.count(1) > 5


def refused(folder: Path) -> list[str]:
    """What is said of a latest checkpoint whose shard of rank 1 was cut, changed, or lost."""
    toys.fit(toys.SimpleDS, {"stage": 1}, folder, max_length=pytorch.Batch(1))
    toys.fit(toys.SimpleDS, {"stage": 1}, folder, max_length=pytorch.Batch(2), latest_checkpoint="latest")
    latest = folder / "checkpoints" / (folder / "checkpoints" / "latest").read_text().strip()
    shard = latest / "model0" / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    whole = shard.read_bytes()
    changed = bytes([*whole[:100], whole[100] ^ 1, *whole[101:]])
    messages = []
    for damaged in (whole[:-50], changed, None):
        torch.distributed.barrier()
        if torch.distributed.get_rank() == 0:
            shard.unlink() if damaged is None else shard.write_bytes(damaged)
        torch.distributed.barrier()
        with pytest.raises(InvalidCheckpointException) as error:
            toys.fit(toys.SimpleDS, {"stage": 1}, folder, max_length=pytorch.Batch(3), latest_checkpoint="latest")
        messages.append(str(error.value))
    return messages


def test_a_damaged_shard_is_refused_on_all_ranks(tmp_path: Path) -> None:
    first, second = run_ranks(refused, tmp_path)
    assert first == second
    for message, wanted in zip(first, ("bytes, should be", "content has changed", "missing"), strict=True):
        assert "zero_pp_rank_1_mp_rank_00_optim_states.pt: " in message
        assert wanted in message
        assert "The newest intact checkpoint is 00000001-" in message


def one_rank_cannot_write(folder: Path) -> str:
    class Failing(toys.SimpleDS):
        def save(self, context: Any, path: Path) -> None:
            super().save(context, path)
            if context.distributed.rank == 1:
                raise OSError("disk full")

    with pytest.raises(RuntimeError) as error:
        toys.fit(Failing, run_dir=folder, max_length=pytorch.Batch(1))
    return str(error.value)


def test_a_rank_that_cannot_write_fails_all(tmp_path: Path) -> None:
    messages = run_ranks(one_rank_cannot_write, tmp_path)
    assert all("rank 1: OSError('disk full')" in message for message in messages)
    assert not list((tmp_path / "checkpoints").iterdir())


def test_a_missing_checkpoint_is_an_error_that_lists_what_is_there(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    store.save("first", write("old"), {"progress": {"batches": 1}}).result()
    with pytest.raises(InvalidCheckpointException, match=r"no checkpoint 'other'.*there: first"):
        store.find("other")


@pytest.mark.parametrize(
    "left", [b"", b"00000009-aaaaaaaa", b"../..", b"/", b".", b"..", b"\n", b"a\0b", b".tmp-1", b"\xff\xfe"]
)
def test_the_newest_that_is_there_is_found_without_the_file_that_names_it(left: bytes, tmp_path: Path) -> None:
    store = store_in(tmp_path)
    for name in ("00000001-aaaaaaaa", "00000002-bbbbbbbb"):
        store.save(name, write(name), {"progress": {"batches": 1}}).result()
    if left:  # names one that somebody removed, or none
        (tmp_path / "checkpoints" / "latest").write_bytes(left)
    else:  # killed between the two renames of the first commit
        (tmp_path / "checkpoints" / "latest").unlink()
    assert store_in(tmp_path).find("latest").name == "00000002-bbbbbbbb"


DESCRIBED = {"size": 3, "sha256": "0" * 64}
MALFORMED = [
    "{}",
    "[]",
    "",
    '{"files": {}',
    "[" * 100_000,
    '{"files": {}, "progress": {"batches": 1}}',
    *(
        json.dumps({"files": {"rank_0": DESCRIBED}, "progress": {"batches": 1}, **wrong})
        for wrong in (
            {"files": ["rank_0"]},
            {"files": {"../rank_0": DESCRIBED}},
            {"files": {"/etc/passwd": DESCRIBED}},
            {"files": {"a\0b": DESCRIBED}},
            {"files": {"rank_0": None}},
            {"files": {"rank_0": {"size": "3", "sha256": "0" * 64}}},
            {"files": {"rank_0": {"size": 3}}},
            {"progress": None},
            {"progress": {"batches": -1}},
            {"progress": {"batches": 1, "last_validation": "x"}},
            {"world_size": 0},
            {"world_size": "2"},
            {"data_parallel_size": [1]},
            {"best_metric": "low"},
            {"sha256": "0" * 64},
        )
    ),
    None,
]


@pytest.mark.parametrize("content", MALFORMED)
def test_a_damaged_manifest_is_refused_and_the_sound_checkpoint_named(content: str | None, tmp_path: Path) -> None:
    store = store_in(tmp_path)
    for name in ("00000001-aaaaaaaa", "00000002-bbbbbbbb", "00000003-cccccccc"):
        store.save(name, write(name), {"progress": {"batches": 10}}).result()
    for name in ("00000002-bbbbbbbb", "00000003-cccccccc"):
        manifest = tmp_path / "checkpoints" / name / "manifest.json"
        manifest.write_text(
            manifest.read_text().replace('"batches": 10', '"batches": 11') if content is None else content
        )
    with pytest.raises(InvalidCheckpointException, match=r"manifest\.json: .*intact checkpoint is 00000001-aaaaaaaa"):
        store.verify(store.find("latest"))


@pytest.mark.parametrize("what", ["file", "link", "read-only"])
def test_a_folder_that_takes_no_checkpoints_is_reported_before_training(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "checkpoints"
    if what == "file":
        folder.write_text("")
    elif what == "link":
        folder.symlink_to(tmp_path / "nowhere")
    else:
        monkeypatch.setattr(os, "access", lambda path, _: Path(path) != tmp_path)  # permissions are not root's
    with pytest.raises(CheckpointStorageError, match=r"cannot be saved to .*checkpoints"):
        toys.fit(toys.SimplePT, run_dir=tmp_path, max_length=pytorch.Batch(1))


@pytest.mark.parametrize(("smaller", "wanted"), [(True, [True, False, True]), (False, [True, True, False])])
def test_the_policy_best_compares_with_all_before(smaller: bool, wanted: list[bool]) -> None:
    policy = CheckpointPolicy("best", "loss", smaller)
    assert [policy.wants({"loss": value}) for value in (2.0, 3.0, 1.0)] == wanted
    with pytest.raises(RuntimeError, match="'loss'"):
        policy.wants({"other": 1.0})


def test_what_a_checkpoint_records(tmp_path: Path) -> None:
    toys.fit(toys.SimplePT, run_dir=tmp_path, max_length=pytorch.Batch(2))
    folder = tmp_path / "checkpoints" / (tmp_path / "checkpoints" / "latest").read_text().strip()
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["progress"]["batches"] == 2
    assert manifest["world_size"] == 1
    assert {"state_dict.pth", "rank_0.pt", "load_data.json"} <= manifest["files"].keys()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["group"], line["steps_completed"]) for line in lines] == [("training", 2), ("validation", 2)]
    assert len(lines[0]["batch_metrics"]) == 2
