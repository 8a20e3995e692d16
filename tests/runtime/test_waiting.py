"""Between two reports the loop never reads a metric from its device: that would wait for the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import toys
from trial_runtime.pytorch import Batch

READS = ("item", "cpu", "numpy", "tolist", "to", "__float__", "__bool__", "__array__", "_local_scalar_dense")


class Far(torch.Tensor):
    """A tensor that says it is not in the host's memory, and notes when it is read."""

    trained: ClassVar[int] = 0
    reads: ClassVar[list[tuple[int, str]]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if getattr(func, "__self__", None) is torch.Tensor.is_cpu:
            return False
        if name in READS:
            cls.reads.append((cls.trained, name))
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]


class FarBody:
    """Metrics of the toy trial as far tensors."""

    def train_batch(self, *args: Any, **kwargs: Any) -> Any:
        metrics = super().train_batch(*args, **kwargs)  # type: ignore[misc]
        Far.trained += 1
        return {"loss": metrics["loss"].detach().as_subclass(Far)}


class FarPT(FarBody, toys.SimplePT):  # type: ignore[misc]
    pass


class FarDS(FarBody, toys.SimpleDS):
    pass


@pytest.mark.parametrize("kind", [FarPT, FarDS])
def test_metrics_are_read_at_reports_only(kind: Any, tmp_path: Path) -> None:
    Far.trained, Far.reads = 0, []
    outcome = toys.fit(kind, run_dir=tmp_path, max_length=Batch(6), reporting_period=Batch(3))
    assert len(outcome.training) == 6
    assert {trained for trained, _ in Far.reads} == {3, 6}


@pytest.mark.parametrize("kind", [FarPT, FarDS])
def test_a_metric_that_the_trial_changes_later_keeps_its_value(kind: Any, tmp_path: Path) -> None:
    class Counting(kind):  # type: ignore[misc]
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            self.count = torch.zeros(())
            self.far = torch.zeros(()).as_subclass(Far)
            self.several = torch.zeros(2)

        def train_batch(self, *args: Any, **kwargs: Any) -> Any:
            super().train_batch(*args, **kwargs)
            for tensor in (self.count, self.far, self.several):
                tensor += 1
            return {"count": self.count, "far": self.far, "several": self.several}

    outcome = toys.fit(Counting, run_dir=tmp_path, max_length=Batch(3), reporting_period=Batch(3))
    assert [float(metrics["count"]) for metrics in outcome.training] == [1.0, 2.0, 3.0]
    assert [float(metrics["far"]) for metrics in outcome.training] == [1.0, 2.0, 3.0]
    assert [metrics["several"].tolist() for metrics in outcome.training] == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]


def test_numbers_in_the_hosts_memory_keep_their_type(tmp_path: Path) -> None:
    class Typed(toys.SimpleDS):
        def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
            super().train_batch(dataloader_iter, epoch_idx, batch_idx)
            return {
                "single": torch.tensor(0.1),
                "double": torch.tensor(0.1, dtype=torch.float64),
                "half": torch.tensor(0.5, dtype=torch.bfloat16),
                "count": torch.tensor(2**60 + 1),
            }

    (metrics,) = toys.fit(Typed, run_dir=tmp_path, max_length=Batch(1)).training
    assert {name: str(value.dtype) for name, value in metrics.items()} == {
        "single": "float32",
        "double": "float64",
        "half": "float32",
        "count": "int64",
    }
    assert int(metrics["count"]) == 2**60 + 1
