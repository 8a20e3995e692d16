"""Differences between two records, with their size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ds_verify.record import Key, Kind, Record

if TYPE_CHECKING:
    from ds_verify.tolerance import Limits

# Within a step causes come first: a learning rate is one before the weights that it moves.
_CAUSES: list[Kind] = [
    "setup",
    "initial",
    "lr",
    "training",
    "gradient",
    "window",
    "validation",
    "norm",
    "saved",
    "state",
]

# Agreement asked for in fp32 on a CPU, absolute.
TOLERANCE = 1e-6


@dataclass(frozen=True)
class Difference:
    """A value that differs. `gap` is the largest absolute difference, infinite where none can be taken."""

    key: Key
    gap: float
    reason: str
    limit: float = 0.0


def gap_between(expected: np.ndarray[Any, Any], actual: np.ndarray[Any, Any]) -> float:
    """Return the largest absolute difference of two arrays of one shape; equal infinities and NaNs differ by 0."""
    a, b = expected.astype(np.float64), actual.astype(np.float64)
    with np.errstate(invalid="ignore"):
        gaps = np.abs(a - b)
    gaps = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, gaps)
    return float(np.max(np.where(np.isnan(gaps), np.inf, gaps), initial=0.0))


def compare(
    reference: Record,
    candidate: Record,
    tolerance: float | Limits = TOLERANCE,
    excluded: Mapping[str, str] | None = None,
) -> list[Difference]:
    """Return all differences above `tolerance`: first step first, then causes before effects, larger gaps first.

    Both ways: a value that only one of the two has is a difference as well.

    tolerance: one absolute limit for all values, or the limits that a control run showed.
    excluded: names that are not compared, each with its reason (a parameter whose true gradient is zero moves by
        rounding noise). A name that no record holds is a ValueError: no exclusion outlives its cause unseen.
    """
    excluded = excluded or {}
    unknown = set(excluded) - {key.name for key in reference.values}
    if unknown:
        raise ValueError(f"excluded from the comparison, but not in the reference: {', '.join(sorted(unknown))}")
    differences = []
    for key in _all_keys(reference, candidate):
        if key.name in excluded:
            continue
        expected, actual = reference.find(key), candidate.find(key)
        if key.kind == "norm" and (expected is None or actual is None):
            continue  # by attribute: an engine is one more, and weights that are spread over ranks have none
        if expected is None or actual is None:
            side = "reference" if expected is None else "candidate"
            differences.append(Difference(key, float("inf"), f"missing in the {side}"))
            continue
        limit = tolerance if isinstance(tolerance, int | float) else tolerance.of(key, expected)
        if expected.shape != actual.shape:
            reason = f"shape {expected.shape} became {actual.shape}"
            differences.append(Difference(key, float("inf"), reason, limit))
        elif (gap := gap_between(expected, actual)) > limit:
            reason = _change(expected, actual) if expected.size == 1 else f"shape {expected.shape}"
            differences.append(Difference(key, gap, reason, limit))
    return sorted(differences, key=lambda d: (d.key.step, _CAUSES.index(d.key.kind), -d.gap, d.key.rank, d.key.name))


def _change(expected: np.ndarray[Any, Any], actual: np.ndarray[Any, Any]) -> str:
    """Return both values of one number, with six digits where these distinguish them."""
    before, after = (f"{each.item():.6g}" for each in (expected, actual))
    return f"{before} became {after}" if before != after else f"{expected.item()!r} became {actual.item()!r}"


def _all_keys(reference: Record, candidate: Record) -> list[Key]:
    """Return the reference's keys, and those of the candidate that the reference has under none of their names."""
    names: dict[str, list[str]] = {}
    for other, canonical in candidate.aliases.items():
        names.setdefault(canonical, [canonical]).append(other)
    found = dict.fromkeys(reference.values)
    for key in candidate.values:
        known = [Key(key.kind, key.step, name, key.rank) for name in names.get(key.name, [key.name])]
        if all(reference.find(other) is None for other in known):
            found[key] = None
    return list(found)


def largest_gap(reference: Record, candidate: Record) -> float:
    """Return the largest absolute difference over the values that both records hold."""
    return max((gap for _, gap in gaps(reference, candidate)), default=0.0)


def gaps(reference: Record, candidate: Record) -> list[tuple[Key, float]]:
    """Return the gap of each value that both records hold in one shape."""
    found = []
    for key, expected in reference.values.items():
        actual = candidate.find(key)
        if actual is not None and actual.shape == expected.shape:
            found.append((key, gap_between(expected, actual)))
    return found


def table(differences: Sequence[Difference], limit: int = 20) -> str:
    """Return the first differences as lines of text: step, gap, key and the two values."""
    rows = [f"{'step':>5}  {'gap':>9}  value"]
    rows += [f"{d.key.step:>5}  {d.gap:>9.2e}  {d.key}: {d.reason}" for d in differences[:limit]]
    if len(differences) > limit:
        rows.append(f"... and {len(differences) - limit} more")
    return "\n".join(rows)
