"""Scalars written in one piece are what TensorBoard's own writer writes one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
from torch.utils.tensorboard import SummaryWriter
from trial_runtime.pytorch._reporting.scalars import Scalars, records, write_scalars


def scalars_in(folder: Path) -> list[tuple[str, float, int]]:
    """What TensorBoard reads, in the order of the file."""
    (file,) = folder.glob("events.*")
    found = []
    for event in EventFileLoader(str(file)).Load():
        for value in event.summary.value:
            found.append((value.tag, float(value.tensor.float_val[0]), event.step))
    return found


def test_tensorboard_reads_them_beside_those_of_the_trial(tmp_path: Path) -> None:
    writer = SummaryWriter(str(tmp_path))
    writer.add_scalar("mine", 1.0, 0)
    both = {"Determined/loss": np.array([0.5, 0.75]), "Determined/accuracy": np.array([0.25, 1.0])}
    write_scalars(writer, [Scalars(np.array([0, 1]), both), Scalars.of_step(2, {"Determined/loss": 0.25})])
    writer.add_scalar("mine", 2.0, 1)
    writer.close()
    assert scalars_in(tmp_path) == [
        ("mine", 1.0, 0),
        ("Determined/loss", 0.5, 0),
        ("Determined/accuracy", 0.25, 0),
        ("Determined/loss", 0.75, 1),
        ("Determined/accuracy", 1.0, 1),
        ("Determined/loss", 0.25, 2),
        ("mine", 2.0, 1),
    ]


def test_any_other_writer_gets_them_one_by_one() -> None:
    class Other:
        def __init__(self) -> None:
            self.seen: list[Any] = []

        def add_scalar(self, *scalar: Any) -> None:
            self.seen.append(scalar)

    writer = Other()
    write_scalars(writer, [Scalars(np.array([0, 1]), {"a": np.array([1.0, 3.0])}), Scalars.of_step(1, {"b": 2.0})])
    assert writer.seen == [("a", 1.0, 0), ("a", 3.0, 1), ("b", 2.0, 1)]


_NAMES = st.sampled_from(["a", "Determined/loss", "größe" * 30, "x" * 127, "y" * 200])


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=6), st.data())
def test_records_are_those_of_the_format(steps: list[int], data: st.DataObject) -> None:
    numbers = st.lists(st.floats(width=32), min_size=len(steps), max_size=len(steps)).map(np.array)
    columns = data.draw(st.dictionaries(_NAMES, numbers, min_size=1, max_size=4))
    found = b"".join(part.tobytes() for part in records(Scalars(np.array(steps), columns)))
    for row, step in enumerate(steps):
        length = int.from_bytes(found[:8], "little")
        content = found[12 : 12 + length]
        assert found[8:12] == _crc(found[:8])
        assert found[12 + length : 16 + length] == _crc(content)
        found = found[16 + length :]
        event = Event.FromString(content)
        written = [(value.tag, np.float32(value.simple_value).tobytes()) for value in event.summary.value]
        assert event.step == step
        assert written == [(name, np.float32(column[row]).tobytes()) for name, column in columns.items()]
        assert event.SerializeToString() == content
    assert not found


def _crc(data: bytes) -> bytes:
    return int(masked_crc32c(data)).to_bytes(4, "little")


@pytest.mark.parametrize(
    ("value", "read"), [(float("nan"), "nan"), (float("inf"), "inf"), (-1e300, "-inf")], ids=["nan", "inf", "too large"]
)
def test_numbers_that_are_none_are_written_too(value: float, read: str, tmp_path: Path) -> None:
    writer = SummaryWriter(str(tmp_path))
    write_scalars(writer, [Scalars.of_step(0, {"x": value})])
    writer.close()
    assert [repr(number) for _, number, _ in scalars_in(tmp_path)] == [read]
