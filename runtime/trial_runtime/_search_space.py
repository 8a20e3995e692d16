"""Hyperparameters and their search spaces, written in Python for the config of :func:`experimental.create`."""

from __future__ import annotations

from typing import Any


def Constant(value: Any) -> dict[str, Any]:  # noqa: N802 - Determined's name
    """Return the value of a hyperparameter that no search changes."""
    return {"type": "const", "val": value}


def Integer(minval: int, maxval: int) -> dict[str, Any]:  # noqa: N802
    """Return the space of the integers from ``minval`` to ``maxval``."""
    return {"type": "int", "minval": minval, "maxval": maxval}


def Double(minval: float, maxval: float) -> dict[str, Any]:  # noqa: N802
    """Return the space of the numbers from ``minval`` to ``maxval``, uniformly distributed."""
    return {"type": "double", "minval": minval, "maxval": maxval}


def Categorical(vals: list[Any]) -> dict[str, Any]:  # noqa: N802
    """Return the space of these values."""
    return {"type": "categorical", "vals": vals}


def Log(minval: float, maxval: float, base: float = 10) -> dict[str, Any]:  # noqa: N802
    """Return the space of powers of ``base``, with exponents from ``minval`` to ``maxval``."""
    return {"type": "log", "minval": minval, "maxval": maxval, "base": base}
