"""Scalars written in one piece are what TensorBoard's own writer writes one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
from torch.utils.tensorboard import SummaryWriter
from trial_runtime.pytorch._scalars import records, write_scalars


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
    write_scalars(writer, [(0, {"Determined/loss": 0.5, "Determined/accuracy": 0.25}), (1, {"Determined/loss": 0.75})])
    writer.add_scalar("mine", 2.0, 1)
    writer.close()
    assert scalars_in(tmp_path) == [
        ("mine", 1.0, 0),
        ("Determined/loss", 0.5, 0),
        ("Determined/accuracy", 0.25, 0),
        ("Determined/loss", 0.75, 1),
        ("mine", 2.0, 1),
    ]


def test_any_other_writer_gets_them_one_by_one() -> None:
    class Other:
        def __init__(self) -> None:
            self.seen: list[Any] = []

        def add_scalar(self, *scalar: Any) -> None:
            self.seen.append(scalar)

    writer = Other()
    write_scalars(writer, [(0, {"a": 1.0}), (1, {"b": 2.0})])
    assert writer.seen == [("a", 1.0, 0), ("b", 2.0, 1)]


@given(st.lists(st.binary(max_size=20), max_size=5))
def test_records_have_the_checksums_of_the_format(contents: list[bytes]) -> None:
    for content, record in zip(contents, records(contents), strict=True):
        length = len(content).to_bytes(8, "little")
        assert record == length + _crc(length) + content + _crc(content)


def _crc(data: bytes) -> bytes:
    return int(masked_crc32c(data)).to_bytes(4, "little")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_none_are_written_too(value: float, tmp_path: Path) -> None:
    writer = SummaryWriter(str(tmp_path))
    write_scalars(writer, [(0, {"x": value})])
    writer.close()
    ((_, read, _),) = scalars_in(tmp_path)
    assert repr(read) == repr(value)
