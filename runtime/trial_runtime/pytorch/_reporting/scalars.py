"""Many scalars at once into the file of a TensorBoard writer.

``SummaryWriter.add_scalar`` opens the file and computes checksums in Python for each number: 40 microseconds a batch.
A report writes its batches' records in one piece here: the same file, the same records, a tenth of the time.

A record is its length (8 bytes), the length's checksum (4), an ``Event`` in protobuf, the event's checksum (4); all are
little-endian. The checksum is CRC-32C, rotated and shifted by a constant (the TFRecord format).
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

_Bytes: TypeAlias = "npt.NDArray[np.uint8]"
_STEPS_WITH_LONGER_VARINTS = np.array([1, *(2 ** (7 * length) for length in range(1, 9))])


class Scalars(NamedTuple):
    """Scalars of the same names for some steps.

    Attributes:
        steps: integers >= 0, shape (rows,).
        columns: the numbers by name, each of shape (rows,).
    """

    steps: npt.NDArray[np.int64]
    columns: dict[str, npt.NDArray[Any]]

    @staticmethod
    def of_step(step: int, numbers: dict[str, float]) -> Scalars:
        """Those of one step, by name."""
        return Scalars(np.array([step]), {name: np.array([number]) for name, number in numbers.items()})


def write_scalars(writer: Any, many: Iterable[Scalars]) -> None:
    """Write scalars through a ``SummaryWriter``, or whatever else has its ``add_scalar``.

    Args:
        writer: the writer; what was written before comes before these in its file.
        many: the scalars, in the order of the file.
    """
    many = [scalars for scalars in many if scalars.columns]
    events = getattr(getattr(writer, "_get_file_writer", lambda: None)(), "event_writer", None)
    file = getattr(events, "_general_file_writer", None)
    if file is not None and events is not None:
        events.flush()
        file.write(b"".join(rows.tobytes() for scalars in many for rows in records(scalars)))
        return
    for scalars in many:
        for row, step in enumerate(scalars.steps.tolist()):
            for name, column in scalars.columns.items():
                writer.add_scalar(name, column[row].item(), step)


def records(scalars: Scalars) -> Iterator[_Bytes]:
    """The records, a step a row; those with equally many digits in their step at a time, in order."""
    table = np.stack([*scalars.columns.values()], axis=1).astype(np.float64)
    lengths = np.searchsorted(_STEPS_WITH_LONGER_VARINTS, scalars.steps, side="right")
    starts = [0, *(np.flatnonzero(np.diff(lengths)) + 1), len(lengths)]
    for start, end in itertools.pairwise(starts):
        events = _events([*scalars.columns], scalars.steps[start:end], table[start:end])
        header = np.broadcast_to(_header(events.shape[1]), (end - start, 12))
        yield np.hstack([header, events, _masked_crc32c(events)[:, None].view(np.uint8)])


def _events(names: Sequence[str], steps: npt.NDArray[np.int64], table: npt.NDArray[np.float64]) -> _Bytes:
    """Serialized events, a step a row. They are the first one's but for the bytes of step and numbers.

    Args:
        names: of the scalars.
        steps: their varints are of the same length.
        table: numbers, a step a row, a name a column.
    """
    from tensorboard.compat.proto.event_pb2 import Event

    event = Event(wall_time=time.time(), step=int(steps[0]))
    for name in names:
        event.summary.value.add(tag=name, simple_value=0.0)
    first = event.SerializeToString()
    events = np.tile(np.frombuffer(first, np.uint8), (len(steps), 1))

    length = _varint_length(int(steps[0]))
    septets = (steps[:, None] >> np.arange(0, 7 * length, 7)) & 0x7F
    septets[:, :-1] |= 0x80  # more follow
    events[:, 10 : 10 + length] = septets  # behind the wall time (9 bytes) and the field's number

    with np.errstate(over="ignore"):  # then it is infinite, as a float of 32 bits
        numbers = table.astype("<f4")
    end = len(first)
    for column in reversed(range(len(names))):  # a number is the last of its scalar
        events[:, end - 4 : end] = numbers[:, column, None].view(np.uint8)
        size = event.summary.value[column].ByteSize()
        end -= 1 + _varint_length(size) + size
    return events


def _varint_length(value: int) -> int:
    """Bytes that protobuf writes for an integer; none for 0, which it leaves out."""
    return (value.bit_length() + 6) // 7


@functools.cache
def _header(length: int) -> _Bytes:
    size = np.array([length], "<u8").view(np.uint8)
    return np.hstack([size, _masked_crc32c(size[None]).view(np.uint8)])


def _masked_crc32c(rows: _Bytes) -> npt.NDArray[np.uint32]:
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
