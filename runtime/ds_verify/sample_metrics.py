"""Metrics that count samples, such as accuracy: where rounding moves one sample over a threshold, they jump."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ds_verify.record import Key, Kind, Record

_MOST = 50_000
"""Larger counts cannot be recognised in a float32."""


@dataclass(frozen=True)
class SampleCounts:
    """The numbers of samples behind a metric.

    Attributes:
        training: in a micro-batch of all ranks; 0: unknown.
        window: micro-batches in an optimizer step, after each of which a training run reports.
        validation: in each validation batch of all ranks.
    """

    training: int = 0
    window: int = 1
    validation: Sequence[int] = ()

    @classmethod
    def of(cls, record: Record, figures: Mapping[str, Any]) -> SampleCounts:
        """Return the counts of a run from its record and figures."""
        window = next((int(value) for key, value in record.values.items() if key.kind == "setup"), 1)
        return cls(figures.get("training_samples", 0), window, figures.get("validation_samples", ()))

    def denominators(self, kind: Kind) -> list[int]:
        """Return the numbers of which a metric of this kind is a fraction, if it counts samples."""
        if kind == "training":
            found = [self.training]
        elif kind == "window":
            found = [self.training * self.window]
        elif kind == "validation" and self.validation:
            found = [sum(self.validation), len(self.validation) * math.lcm(*self.validation)]
        else:
            found = []
        return [count for count in found if 0 < count <= _MOST]

    def share(self, kind: Kind) -> float:
        """Return the largest share that one sample may have in a metric of this kind."""
        if kind == "validation":
            return max(1 / sum(self.validation), 1 / (len(self.validation) * min(self.validation)))
        return 1 / (self.training * (self.window if kind == "window" else 1))


def jumps(records: Sequence[Record], counts: SampleCounts) -> dict[tuple[Kind, str], float]:
    """Return by how much one sample moves each metric that counts samples.

    Such a metric is, in each record and at each step, a whole number of samples divided by all of them (or a
    percentage, or that number itself), and it changes.

    Args:
        records: of the same training; the first one is the original's.
        counts: how many samples there are.
    """
    series: dict[tuple[Kind, str], list[list[float]]] = {}
    for index, record in enumerate(records):
        for key, value in record.values.items():
            if value.size == 1 and counts.denominators(key.kind):
                values = series.setdefault((key.kind, key.name), [[] for _ in records])
                values[index].append(float(value.item()))
    found = {}
    for (kind, name), values in series.items():
        for count in counts.denominators(kind):
            scale = next((scale for scale in (1, 100, count) if _counts_samples(values, count, scale)), None)
            if scale is not None:
                found[kind, name] = scale * counts.share(kind)
                break
    return found


def _counts_samples(values: Sequence[Sequence[float]], count: int, scale: int) -> bool:
    every = np.array([value for one in values for value in one]) / scale
    if not np.isfinite(every).all() or every.min() < 0 or every.max() > 1:
        return False
    if np.abs(every * count - np.round(every * count)).max() > max(1e-4, count * 1e-7):
        return False
    steps = np.diff(values[0])
    # A counter of batches only grows.
    is_fraction = scale == 1 and bool(((every > 0) & (every < 1)).any())
    return bool(steps.any()) and (is_fraction or bool((steps > 0).any() and (steps < 0).any()))


def parted_from(original: Record, converted: Record, counting: Mapping[tuple[Kind, str], float]) -> float:
    """Return the first step where a value that does not count samples differs at all; infinity when none does.

    Before it the weights are the same bit by bit, so that no sample may move.
    """
    return min(
        (
            key.step
            for key, expected in original.values.items()
            if (key.kind, key.name) not in counting and _differs(expected, converted.find(key))
        ),
        default=math.inf,
    )


def _differs(expected: np.ndarray[Any, Any], actual: np.ndarray[Any, Any] | None) -> bool:
    return actual is not None and not np.array_equal(expected, actual, equal_nan=expected.dtype.kind == "f")


def moved_samples(
    original: Record, converted: Record, counting: Mapping[tuple[Kind, str], float], floor: float
) -> dict[str, Key]:
    """Return the metrics that count samples and differ by more than the floor, each with its first place."""
    found: dict[str, Key] = {}
    for key, expected in sorted(original.values.items(), key=lambda item: item[0].step):
        actual = converted.find(key) if (key.kind, key.name) in counting else None
        if actual is not None and abs(float(actual.item()) - float(expected.item())) > floor:
            found.setdefault(key.name, key)
    return found
