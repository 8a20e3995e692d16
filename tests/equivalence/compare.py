"""Where two records differ, and by how much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from equivalence.record import Key, Record

# Agreement asked for in fp32 on a CPU, absolute.
TOLERANCE = 1e-6


@dataclass(frozen=True)
class Difference:
    """One value that is not the same. `gap` is the largest absolute difference, infinite where none can be taken."""

    key: Key
    gap: float
    reason: str


def gap_between(expected: np.ndarray[Any, Any], actual: np.ndarray[Any, Any]) -> float:
    """Largest absolute difference of two arrays of one shape, in float64; equal infinities and NaNs differ by 0."""
    a, b = expected.astype(np.float64), actual.astype(np.float64)
    with np.errstate(invalid="ignore"):
        gaps = np.abs(a - b)
    gaps = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, gaps)
    return float(np.max(np.where(np.isnan(gaps), np.inf, gaps), initial=0.0))


def compare(
    reference: Record,
    candidate: Record,
    tolerance: float = TOLERANCE,
    excluded: Mapping[str, str] | None = None,
) -> list[Difference]:
    """All differences above `tolerance`, first step first, larger gaps before smaller ones.

    Both ways: a value that only one of the two has is a difference as well.

    excluded: names that are not compared, each with its reason (a parameter whose true gradient is zero moves by
        rounding noise). A name that no record holds is a ValueError: no exclusion outlives its cause unseen.
    """
    excluded = excluded or {}
    unknown = set(excluded) - {key.name for key in reference.values}
    if unknown:
        raise ValueError(f"excluded from the comparison, but not in the reference: {', '.join(sorted(unknown))}")
    differences = []
    for key in reference.values.keys() | candidate.values.keys():
        if key.name in excluded:
            continue
        expected, actual = reference.values.get(key), candidate.values.get(key)
        if expected is None or actual is None:
            side = "reference" if expected is None else "candidate"
            differences.append(Difference(key, float("inf"), f"missing in the {side}"))
        elif expected.shape != actual.shape:
            differences.append(Difference(key, float("inf"), f"shape {expected.shape} became {actual.shape}"))
        elif (gap := gap_between(expected, actual)) > tolerance:
            scalar = expected.size == 1
            reason = f"{expected.item()!r} became {actual.item()!r}" if scalar else f"shape {expected.shape}"
            differences.append(Difference(key, gap, reason))
    return sorted(differences, key=lambda d: (d.key.step, -d.gap, d.key.rank, d.key.name))


def largest_gap(reference: Record, candidate: Record) -> float:
    """The largest absolute difference over the values that both records hold."""
    shared = reference.values.keys() & candidate.values.keys()
    return max((gap_between(reference.values[key], candidate.values[key]) for key in shared), default=0.0)


def table(differences: Sequence[Difference], limit: int = 20) -> str:
    """The first differences as lines of text: step, gap, what it is, the two values."""
    rows = [f"{'step':>5}  {'gap':>9}  value"]
    rows += [f"{d.key.step:>5}  {d.gap:>9.2e}  {d.key}: {d.reason}" for d in differences[:limit]]
    if len(differences) > limit:
        rows.append(f"... and {len(differences) - limit} more")
    return "\n".join(rows)
