"""``torch_batch_process``: the share of each rank, checkpoints, resuming, metrics, as Determined's does it."""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from distributed import run_ranks
from trial_runtime import core
from trial_runtime.pytorch.experimental import (
    TorchBatchProcessor,
    TorchBatchProcessorContext,
    _torch_batch_process,
    torch_batch_process,
)

PROCESS: Any = _torch_batch_process


class Numbers(torch.utils.data.Dataset[int]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


def processor(base: type, events: list[Any], stop_at: int | None = None) -> Any:
    """A processor that records what happens to it."""

    class Recording(base):  # type: ignore[misc]
        def __init__(self, context: Any) -> None:
            self.context = context
            self.total = context.wrap_reducer(lambda values: float(sum(values)), name="total")
            with context.upload_path() as path:
                (Path(path) / "made").write_text("x")

        def process_batch(self, batch: torch.Tensor, batch_idx: int) -> None:
            events.append((batch_idx, batch.tolist()))
            self.total.update(int(batch.sum()))
            if batch_idx == stop_at:
                self.context._core_context.preempt._signals.received = 15

        def on_checkpoint_start(self) -> None:
            events.append("checkpoint")

        def on_finish(self) -> None:
            events.append("finish")

    return Recording


def run_context(folder: Path, events: list[Any]) -> core.Context:
    distributed = core.DistributedContext.from_torch_distributed() if dist.is_initialized() else None
    context = core._dummy_init(distributed=distributed, checkpoint_storage=folder / "checkpoints")
    report = context.train.report_validation_metrics

    def reported(steps_completed: int, metrics: dict[str, Any]) -> None:
        events.append(("metrics", steps_completed, metrics))
        report(steps_completed, metrics)

    context.train.report_validation_metrics = reported  # type: ignore[method-assign]
    return context


def ours(folder: Path, length: int, stop_at: int | None = None, latest: str | None = None, **options: Any) -> list[Any]:
    events: list[Any] = []
    context = run_context(folder, events)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PROCESS.core, "init", lambda **_: context)
        if latest is not None:
            patch.setattr(PROCESS, "get_cluster_info", lambda: SimpleNamespace(latest_checkpoint=latest))
        patch.setenv("WORLD_SIZE", "1")
        torch_batch_process(processor(TorchBatchProcessor, events, stop_at), Numbers(length), **options)
    return events


def theirs(
    folder: Path, length: int, stop_at: int | None = None, latest: str | None = None, **options: Any
) -> list[Any]:
    """The loop of the real package, over the runtime's own core context."""
    events: list[Any] = []
    det: Any = importlib.import_module("determined")
    loop: Any = importlib.import_module("determined.pytorch.experimental._torch_batch_process")
    context: Any = run_context(folder, events)
    context._tensorboard_manager = None

    @contextlib.contextmanager
    def store_path(name: str) -> Any:
        (folder / name).mkdir(parents=True, exist_ok=True)
        yield folder / name

    context.checkpoint._storage_manager = SimpleNamespace(store_path=store_path, _base_path=folder)
    size = dist.get_world_size() if dist.is_initialized() else 1
    described = SimpleNamespace(
        slot_ids=list(range(size)), container_addrs=["localhost"], latest_checkpoint=latest,
        trial=SimpleNamespace(_config={"checkpoint_storage": {"type": "shared_fs"}}),
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(det, "get_cluster_info", lambda: described)
        patch.setattr(det.core, "init", lambda **_: context)
        distributed = context.distributed
        loop.torch_batch_process(
            processor(loop.TorchBatchProcessor, events, stop_at), Numbers(length), distributed_context=distributed,
            **options,
        )  # fmt: skip
    return events


def both(folder: str, length: int, options: dict[str, Any]) -> tuple[list[Any], list[Any], list[int]]:
    one = ours(Path(folder) / "ours", length, **options)
    other = theirs(Path(folder) / "theirs", length, **options)
    return one, other, saved(Path(folder) / "ours")


def saved(folder: Path) -> list[int]:
    """Return how many batches the checkpoints hold, the oldest first."""
    found = sorted((folder / "checkpoints").glob("0*/batch_completed.json"))
    return [json.loads(path.read_text())["batch_completed"] for path in found]


CASES: list[Any] = [
    pytest.param(10, {"batch_size": 2, "checkpoint_interval": 2}, id="whole"),
    pytest.param(7, {"dataloader_kwargs": {"batch_size": 3}, "checkpoint_interval": 1}, id="uneven"),
    pytest.param(9, {"batch_size": 1, "max_batches": 3}, id="limited"),
    pytest.param(12, {"batch_size": 1, "checkpoint_interval": 2, "stop_at": 2}, id="stopped"),
]


@pytest.mark.parametrize(("length", "options"), CASES)
def test_one_rank_does_what_determineds_does(length: int, options: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("determined")
    one, other, checkpoints = both(str(tmp_path), length, options)
    assert one == other
    assert checkpoints and checkpoints == saved(tmp_path / "theirs")
    assert ("finish" in one) == ("stop_at" not in options)
    assert len(list((tmp_path / "ours/outputs").glob("*/rank_0/made"))) == 1


def test_two_ranks_do_what_determineds_do(tmp_path: Path) -> None:
    pytest.importorskip("determined")
    ranks = run_ranks(two_ranks, str(tmp_path))
    for name, length in (("whole", 10), ("uneven", 5)):
        found = [rank[name] for rank in ranks]
        assert all(one == other for one, other, _ in found)
        numbers = [n for one, _, _ in found for event in one if event[0] in range(9) for n in event[1]]
        assert sorted(numbers) == list(range(length))
        (metrics,) = [event for one, _, _ in found for event in one if event[0] == "metrics"]
        assert metrics[2] == {"total": float(sum(range(length)))}
    assert ranks[0]["whole"][2] == [2, 3] and ranks[0]["uneven"][2] == [2]


def two_ranks(folder: str) -> dict[str, Any]:
    options = {"batch_size": 2, "checkpoint_interval": 2}
    return {
        "whole": both(f"{folder}/whole", 10, options),
        "uneven": both(f"{folder}/uneven", 5, options),
    }


def test_a_stopped_run_resumes_behind_its_checkpoint_into_the_same_folder(tmp_path: Path) -> None:
    first = ours(tmp_path, 8, stop_at=2, batch_size=1, checkpoint_interval=2)
    assert [event[0] for event in first if isinstance(event[0], int)] == [0, 1, 2, 3]
    latest = str(max((tmp_path / "checkpoints").glob("0*")))
    second = ours(tmp_path, 8, latest=latest, batch_size=1, checkpoint_interval=2)
    assert [event for event in second if isinstance(event[0], int)] == [(n, [n]) for n in range(4, 8)]
    assert second[-1] == "finish"
    assert len(list((tmp_path / "outputs").iterdir())) == 1


def test_the_context_serves_what_a_processor_asks_for(tmp_path: Path) -> None:
    context = core._dummy_init(checkpoint_storage=tmp_path / "checkpoints", tensorboard_path=tmp_path / "tb")
    served = TorchBatchProcessorContext(context, "id/rank_0")
    model = served.prepare_model_for_inference(torch.nn.Dropout())
    assert not model.training and served.device.type in ("cpu", "cuda")
    assert served.to_device([[1.0]])[0] == [1.0]
    assert (served.get_distributed_rank(), served.get_distributed_size()) == (0, 1)
    assert served.get_tensorboard_path() == tmp_path / "tb"
    served.report_metrics("inference", 3, {"a": 1})
    served.report_task_using_checkpoint("uuid")
    served.report_task_using_model_version("v1")
    with pytest.raises(RuntimeError, match="start the script by ds-train"):
        served.get_hparams()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"checkpoint_interval": 0}, "checkpoint_interval should be a positive integer, not 0"),
        ({"dataloader_kwargs": {"shuffle": True}}, "'shuffle' must be false"),
        ({"dataloader_kwargs": {"sampler": []}}, "remove 'sampler'"),
        ({"dataloader_kwargs": {"batch_sampler": []}}, "remove 'batch_sampler'"),
        ({"batch_size": 2, "dataloader_kwargs": {"batch_size": 2}}, "batch_size is passed into"),
    ],
)
def test_arguments_that_break_sharding_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        torch_batch_process(processor(TorchBatchProcessor, []), Numbers(1), **options)


def test_a_data_set_without_a_length_is_refused() -> None:
    class Stream(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    with pytest.raises(TypeError, match=r"must implement __len__\(\): Stream does not"):
        torch_batch_process(processor(TorchBatchProcessor, []), Stream())


@pytest.mark.parametrize("limit", [0, -1, 9])
def test_a_limit_that_limits_nothing_is_a_warning(limit: int, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=f"max_batches is {limit}, and each rank has 2 batches"):
        events = ours(tmp_path, 2, max_batches=limit)
    assert [event[0] for event in events if isinstance(event[0], int)] == [0, 1]
