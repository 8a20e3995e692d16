"""Checks that raise :class:`CheckFailedError`; each has two names, for ``check.eq(...)`` and for ``check_eq(...)``."""

from __future__ import annotations

from collections.abc import Container, Sized
from typing import Any


class CheckFailedError(Exception):
    """A check failed; the message has the values."""


def _require(holds: bool, failure: str, reason: str | None, detail: str = "") -> None:
    """Raise :class:`CheckFailedError` with ``failure``, ``reason`` and ``detail`` unless the check holds."""
    if not holds:
        because = "" if reason is None else f": {reason}"
        raise CheckFailedError(f"CHECK FAILED! {failure}{because}{detail}")


def true(val: bool, reason: str | None = None) -> None:
    """Check that ``val`` is true."""
    _require(bool(val), f"Got {val}, expected True", reason)


def false(val: bool, reason: str | None = None) -> None:
    """Check that ``val`` is false."""
    _require(not val, f"Got {val}, expected False", reason)


def is_none(val: Any, reason: str | None = None) -> None:
    """Check that ``val`` is None."""
    _require(val is None, f"Got {val}, expected None", reason)


def is_not_none(val: Any, reason: str | None = None) -> None:
    """Check that ``val`` is not None."""
    _require(val is not None, f"Got {val}, expected non-None", reason)


def eq(val: Any, expected: Any, reason: str | None = None) -> None:
    """Check that two values are equal."""
    _require(bool(val == expected), f"Got {val}, expected {expected}", reason)


def not_eq(x: Any, y: Any, reason: str | None = None) -> None:
    """Check that two values differ."""
    _require(bool(x != y), f"Got {x}, expected value != {y}", reason)


def gt(x: Any, y: Any, reason: str | None = None) -> None:
    """Check that ``x > y``."""
    _require(bool(x > y), f"Got {x}, expected value > {y}", reason)


def gt_eq(x: Any, y: Any, reason: str | None = None) -> None:
    """Check that ``x >= y``."""
    _require(bool(x >= y), f"Got {x}, expected value >= {y}", reason)


def lt(x: Any, y: Any, reason: str | None = None) -> None:
    """Check that ``x < y``."""
    _require(bool(x < y), f"Got {x}, expected value < {y}", reason)


def lt_eq(x: Any, y: Any, reason: str | None = None) -> None:
    """Check that ``x <= y``."""
    _require(bool(x <= y), f"Got {x}, expected value <= {y}", reason)


def equal_lengths(x: Sized, y: Sized, reason: str | None = None) -> None:
    """Check that two collections have the same length."""
    _require(
        len(x) == len(y), f"Expected lengths {len(x)} and {len(y)} to be equal; values: {x}, {y}", reason
    )  # fmt: skip


def len_eq(val: Sized, expected_len: int, reason: str | None = None) -> None:
    """Check the length of a collection."""
    _require(
        len(val) == expected_len, f"Got length {len(val)}, expected length {expected_len}", reason, f". Values: {val}"
    )


def is_in(val: Any, expected: Container[Any], reason: str | None = None) -> None:
    """Check that a container has ``val``."""
    shown = list(expected) if isinstance(expected, dict) else expected
    _require(val in expected, f"'{val}' is not in {shown}", reason)


def not_in(val: Any, expected: Container[Any], reason: str | None = None) -> None:
    """Check that a container lacks ``val``."""
    _require(val not in expected, f"Got {val}, expected value not in {expected}", reason)


def is_type(val: Any, expected: type, reason: str | None = None) -> None:
    """Check the type of ``val``; a subclass is another type."""
    _require(type(val) is expected, f"{val} has type {type(val)}, expected type {expected}", reason)


def is_instance(val: Any, expected: type | tuple[type, ...], reason: str | None = None) -> None:
    """Check that ``val`` is an instance of a type, or of one of several."""
    _require(isinstance(val, expected), f"{val} has type {type(val)}, expected isinstance of {expected}", reason)


def is_not_instance(val: Any, expected: type | tuple[type, ...], reason: str | None = None) -> None:
    """Check that ``val`` is no instance of a type, or of any of several."""
    _require(
        not isinstance(val, expected), f"{val} has type {type(val)}, expected not isinstance of {expected}", reason
    )


def is_subclass(val: Any, expected: type, reason: str | None = None) -> None:
    """Check that a class derives from another."""
    _require(issubclass(val, expected), f"{val} has type {type(val)}, expected issubclass of {expected}", reason)


check_true = true
check_false = false
check_none = is_none
check_not_none = is_not_none
check_eq = eq
check_not_eq = not_eq
check_gt = gt
check_gt_eq = gt_eq
check_lt = lt
check_lt_eq = lt_eq
check_eq_len = equal_lengths
check_len = len_eq
check_in = is_in
check_not_in = not_in
check_type = is_type
check_isinstance = is_instance
check_not_isinstance = is_not_instance
check_issubclass = is_subclass
