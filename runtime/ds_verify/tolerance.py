"""Limits of what counts as a difference, from how far two runs of the same training differ by rounding alone.

A control run trains the original again with every initial weight moved by one ulp. What parts by no more than ten
times as far as the control, or by no more than the floor of the precision, is rounding. A metric that counts samples
may differ by one sample more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ds_verify.compare import gap_between
from ds_verify.record import Key, Kind, Record

FACTOR = 10.0
"""A difference has to exceed so many times the control's spread."""

FLOORS: Mapping[tuple[str, str], float] = {
    ("float32", "cpu"): 1e-6,
    ("float32", "cuda"): 1e-5,
    ("float64", "cpu"): 1e-6,
    ("float64", "cuda"): 1e-5,
    ("float16", "cpu"): 2e-3,
    ("float16", "cuda"): 2e-3,
    ("bfloat16", "cpu"): 2e-2,
    ("bfloat16", "cuda"): 2e-2,
}
"""Smallest difference that counts, by precision and device, relative to values above 1: sums in another order give
less. Half precisions: two units in the last place of a value near 1."""

_OPTION = 1e-6
"""Smallest difference of an option that counts, relative to it."""

_TINY = 1e-15

_WEAK = 1e-2
_VARIES = 1e-2
"""A saved value that the control moves by a larger part of itself, such as a duration, is another one in each run."""

Series = tuple[Kind, str, int]


@dataclass
class Limits:
    """The gaps from which on values count as different.

    Attributes:
        floor: of the precision; for values above 1 relative to them.
        spread: how far the control had parted from the original up to each step, by series of values.
        given: the user's own tolerance, in place of both.
        jumps: how far one sample moves a metric that counts samples, which may happen to it where the runs have parted.
        parted_from: the first step where they have, by rounding at least.
    """

    floor: float
    spread: dict[Series, list[tuple[int, float]]] = field(default_factory=dict)
    given: float | None = None
    jumps: Mapping[tuple[Kind, str], float] = field(default_factory=dict)
    parted_from: float = math.inf

    def of(self, key: Key, expected: np.ndarray[Any, Any]) -> float:
        """Return the limit for the value `expected` of the original."""
        scale = max(1.0, magnitude(expected))
        if self.given is not None:
            return self.given * scale
        spread = self.spread_at(key)
        if key.kind == "lr":  # no sum of a device: a rate of 1e-7 is another one than 2e-7
            return max(_OPTION * magnitude(expected), _TINY, FACTOR * spread)
        if key.kind == "saved" and spread > _VARIES * magnitude(expected):
            return math.inf
        limit = max(self.floor * scale, FACTOR * spread)
        return limit + (self.jumps.get((key.kind, key.name), 0.0) if key.step >= self.parted_from else 0.0)

    def spread_at(self, key: Key) -> float:
        """Return the largest gap of the control in this series, up to the step of `key`."""
        points = self.spread.get((key.kind, key.name, key.rank), [])
        return max((gap for step, gap in points if step <= key.step), default=0.0)

    def driven_by_noise(self) -> dict[str, float]:
        """Return the final weights that the control moved by more than the floor: rounding alone decides them.

        A bias before a normalisation is one: its true gradient is 0, and Adam makes steps of any gradient.
        """
        found: dict[str, float] = {}
        for (kind, name, _), points in self.spread.items():
            largest = max(gap for _, gap in points)
            if kind == "state" and largest > self.floor:
                found[name] = max(largest, found.get(name, 0.0))
        return found

    def weak_from(self, original: Record) -> int | None:
        """Return the first step where rounding has grown so far that a difference of 1% of a metric could go unseen."""
        steps = [
            step
            for (kind, name, rank), points in self.spread.items()
            for step, gap in points
            if kind in ("training", "gradient")
            and (kind, name) not in self.jumps
            and FACTOR * gap > _WEAK * magnitude(original.values[Key(kind, step, name, rank)])
        ]
        return min(steps, default=None) if self.given is None else None

    @classmethod
    def measured(cls, original: Record, control: Record, floor: float, given: float | None = None) -> Limits:
        """Return the limits that the control run of `original` shows."""
        limits = cls(floor, given=given)
        for key, value in original.values.items():
            other = control.find(key)
            if key.kind != "initial" and other is not None and other.shape == value.shape:
                gap = gap_between(value, other)
                limits.spread.setdefault((key.kind, key.name, key.rank), []).append((key.step, gap))
        return limits


def magnitude(value: np.ndarray[Any, Any]) -> float:
    """Return the largest finite absolute value; 0 where there is none."""
    sizes = np.abs(value.astype(np.float64))
    return float(np.max(sizes[np.isfinite(sizes)], initial=0.0))
