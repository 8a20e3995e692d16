"""Events of the trials of a search, and the actions that follow; both travel as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from trial_runtime._typed_fields import checked

Reason = Literal["errored", "stop_requested", "canceled", "invalid_hp"]


@dataclass(frozen=True)
class Created:
    """A trial was created."""

    trial: int


@dataclass(frozen=True)
class Validated:
    """A trial reported the searcher's metric.

    Attributes:
        metric: the value; NaN counts as the worst.
        time: the time metric's value; None where trials are given their lengths.
    """

    trial: int
    metric: float
    time: int | None = None


@dataclass(frozen=True)
class ExitedEarly:
    """A trial ended before its length was reached."""

    trial: int
    reason: Reason


@dataclass(frozen=True)
class Closed:
    """A trial ended for good."""

    trial: int


Event = Created | Validated | ExitedEarly | Closed


@dataclass(frozen=True)
class Create:
    """Create a trial with the next draws; its number is its place among them, from 1."""

    trial: int


@dataclass(frozen=True)
class Train:
    """Train a trial until ``length`` in all, then validate it and report."""

    trial: int
    length: int


@dataclass(frozen=True)
class Close:
    """End a trial once it has done what it was asked; at once, where it trains without a length."""

    trial: int


@dataclass(frozen=True)
class Shutdown:
    """End the search."""

    status: Literal["completed", "failed", "canceled"]


Action = Create | Train | Close | Shutdown

_TYPES: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Created, Validated, ExitedEarly, Closed, Create, Train, Close, Shutdown)
}


def to_json(value: Event | Action) -> dict[str, Any]:
    """Return an event or an action as values of JSON."""
    return {"type": type(value).__name__, **asdict(value)}


def from_json(value: Mapping[str, Any]) -> Any:
    """Return the event or action that ``to_json`` made ``value`` of.

    Raises:
        ValueError: it is none.
    """
    fields = dict(value)
    kind = _TYPES.get(str(fields.pop("type", None)))
    try:
        if kind is None:
            raise TypeError
        return checked(kind(**fields))
    except TypeError:
        raise ValueError(f"neither an event nor an action of a search: {dict(value)!r:.200}") from None
