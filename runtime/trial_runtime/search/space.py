"""Hyperparameter spaces: sampled, or laid out as a grid, as Determined's master does it.

The spaces are taken for valid here; the reader of the config checks them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from trial_runtime.search import go_math

SPACES = ("int", "double", "log", "categorical", "const")


class Sampler(Protocol):
    """A source of random numbers."""

    def integer(self, count: int) -> int:
        """Return an integer from 0 to ``count`` - 1."""

    def uniform(self, low: float, high: float) -> float:
        """Return a float of [low, high)."""


def is_space(value: object) -> bool:
    """Return whether ``value`` describes a search space or a typed constant, rather than a group of hyperparameters."""
    return isinstance(value, Mapping) and value.get("type") in SPACES


def is_group(value: object) -> bool:
    """Return whether a hyperparameter's value is a group of others."""
    return isinstance(value, Mapping) and not is_space(value)


def sample(hyperparameters: Mapping[str, Any], random: Sampler) -> dict[str, Any]:
    """Return one value for each hyperparameter.

    Names are drawn in sorted order. Inside of groups the master's own order was random at each call, so a group with
    several spaces cannot be reproduced as a cluster drew it.
    """

    def value_of(value: Any) -> Any:
        if is_group(value):
            return sample(value, random)
        return _sample_space(value, random) if is_space(value) else value

    return {name: value_of(hyperparameters[name]) for name in sorted(hyperparameters)}


def grid_points(hyperparameters: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Return the points of the grid, the last of the sorted names changing fastest."""
    names = sorted(hyperparameters)
    for values in itertools.product(*(_axis(hyperparameters[name]) for name in names)):
        yield dict(zip(names, values, strict=True))


def grid_size(hyperparameters: Mapping[str, Any]) -> int:
    """Return the number of points of the grid, without making them."""
    return math.prod(grid_size(value) if is_group(value) else _axis_length(value) for value in hyperparameters.values())


def to_json_numbers(value: Any) -> Any:
    """Return ``value`` as it comes out of Go's JSON: keys sorted, integral floats below 1e21 as ints."""
    if isinstance(value, Mapping):
        return {key: to_json_numbers(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [to_json_numbers(item) for item in value]
    if isinstance(value, float) and abs(value) < 1e21 and value.is_integer():
        return int(value)
    return value


def _sample_space(space: Mapping[str, Any], random: Sampler) -> Any:
    kind = space["type"]
    if kind == "const":
        return space["val"]
    if kind == "categorical":
        return space["vals"][random.integer(len(space["vals"]))]
    low, high = space["minval"], space["maxval"]
    if kind == "int":
        return low + random.integer(high - low + 1)
    drawn = random.uniform(low, high)
    return go_math.pow(space.get("base", 10), drawn) if kind == "log" else drawn


def _axis_length(value: Any) -> int:
    if not is_space(value) or value["type"] == "const":
        return 1
    if value["type"] == "categorical":
        return len(value["vals"])
    if value["type"] == "int":
        return min(int(value["count"]), int(value["maxval"]) - int(value["minval"]) + 1)
    return int(value["count"])


def _axis(value: Any) -> Iterable[Any]:
    if is_group(value):
        return grid_points(value)
    if not is_space(value):
        return [value]
    if value["type"] == "const":
        return [value["val"]]
    if value["type"] == "categorical":
        return list(value["vals"])
    low, high, count = value["minval"], value["maxval"], _axis_length(value)
    if value["type"] == "int":
        return [_round_half_away(point) for point in _spread(low, high, count)]
    points = _spread(low, high, count)
    return [go_math.pow(value.get("base", 10), point) for point in points] if value["type"] == "log" else points


def _spread(low: float, high: float, count: int) -> list[float]:
    if count == 1:
        return [(low + high) / 2]
    return [low + index * (high - low) / (count - 1) for index in range(count)]


def _round_half_away(value: float) -> int:
    return int(math.copysign(math.floor(abs(value) + 0.5), value))
