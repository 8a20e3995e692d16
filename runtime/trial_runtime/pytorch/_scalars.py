"""Many scalars at once into the file of a TensorBoard writer.

``SummaryWriter.add_scalar`` opens the file and computes checksums in Python for each number: 40 microseconds a batch.
A report writes its batches' records in one piece here: the same file, the same records, a tenth of the time.

A record is its length (8 bytes), the length's checksum (4), an ``Event`` in protobuf, the event's checksum (4); all are
little-endian. The checksum is CRC-32C, rotated and shifted by a constant (the TFRecord format).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Scalars = tuple[int, dict[str, float]]
"""A step, and its numbers by name."""


def write_scalars(writer: Any, steps: Sequence[Scalars]) -> None:
    """Write scalars through a ``SummaryWriter``, or whatever else has its ``add_scalar``.

    Args:
        writer: the writer; what was written before comes before these in its file.
        steps: the scalars, step by step.
    """
    events = getattr(getattr(writer, "_get_file_writer", lambda: None)(), "event_writer", None)
    file = getattr(events, "_general_file_writer", None)
    if file is None or events is None:
        for step, numbers in steps:
            for name, number in numbers.items():
                writer.add_scalar(name, number, step)
        return
    events.flush()
    file.write(b"".join(records(_events(steps))))


def _events(steps: Iterable[Scalars]) -> list[bytes]:
    """An event for each step, serialized. One object is filled again and again: making it takes longer."""
    from tensorboard.compat.proto.event_pb2 import Event

    event = Event(wall_time=time.time())
    values: list[Any] = []
    names: list[str] = []
    made = []
    for step, numbers in steps:
        if list(numbers) != names:
            names = list(numbers)
            event.summary.ClearField("value")
            values = [event.summary.value.add(tag=name) for name in names]
        event.step = step
        for value, number in zip(values, numbers.values(), strict=True):
            value.simple_value = number
        made.append(event.SerializeToString())
    return made


def records(contents: Sequence[bytes]) -> list[bytes]:
    """The TFRecord of each of these contents."""
    made: list[bytes] = [b""] * len(contents)
    by_length: dict[int, list[int]] = {}
    for index, content in enumerate(contents):
        by_length.setdefault(len(content), []).append(index)
    for length, indices in by_length.items():  # checksums of equal lengths at once
        header = _header(length)
        rows = np.frombuffer(b"".join(contents[index] for index in indices), np.uint8).reshape(len(indices), length)
        footers = _masked_crc32c(rows).tobytes()
        for row, index in enumerate(indices):
            made[index] = header + contents[index] + footers[4 * row : 4 * row + 4]
    return made


@functools.cache
def _header(length: int) -> bytes:
    header = length.to_bytes(8, "little")
    checksum: bytes = _masked_crc32c(np.frombuffer(header, np.uint8)[None]).tobytes()
    return header + checksum


def _masked_crc32c(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """The masked checksum of each row."""
    length = rows.shape[1]
    # A checksum is the sum, modulo 2, of what each byte adds at its distance from the end.
    added = _tables(length)[np.arange(length)[::-1], rows]
    crc = ~(np.bitwise_xor.reduce(added, axis=1) ^ _of_zeros(length))
    masked = ((crc >> 15) | (crc << 17)) + np.uint32(0xA282EAD8)  # modulo 2**32, as arrays are
    little: npt.NDArray[np.uint32] = masked.astype("<u4")
    return little


@functools.cache
def _tables(length: int) -> npt.NDArray[np.uint32]:
    """What a byte adds with 0, 1... bytes after it, by its value: eight steps of the reflected polynomial 0x82F63B78,
    and eight more for each byte that follows. Shape (length, 256)."""
    first = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        first = np.where(first & 1, (first >> 1) ^ np.uint32(0x82F63B78), first >> 1)
    tables = [first]
    for _ in range(length - 1):
        tables.append(first[tables[-1] & 0xFF] ^ (tables[-1] >> 8))
    return np.stack(tables)[:length]


@functools.cache
def _of_zeros(length: int) -> np.uint32:
    """What the initial value, all ones, becomes behind so many bytes."""
    crc: np.uint32 = np.uint32(0xFFFFFFFF)
    table = _tables(1)[0]
    for _ in range(length):
        crc = table[crc & 0xFF] ^ (crc >> 8)
    return crc
