"""Everything that links lead to from some start, however indirectly."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

_T = TypeVar("_T")


def reachable(start: Iterable[_T], following: Callable[[_T], Iterable[_T]]) -> list[_T]:
    """Return the start, and everything that links lead to from there, the nearest first."""
    found = list(dict.fromkeys(start))
    known = set(found)
    for one in found:  # grows
        new = [other for other in dict.fromkeys(following(one)) if other not in known]
        known.update(new)
        found += new
    return found
