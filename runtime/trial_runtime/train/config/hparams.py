"""The ``hyperparameters`` of an experiment config: search spaces in, one value each out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from trial_runtime.search.space import SPACES, is_space
from trial_runtime.train.config.errors import Problems, as_integer, did_you_mean, shown

_BOUNDS = frozenset({"minval", "maxval", "vals", "val"})


def resolve(tree: Mapping[str, Any], picks: Mapping[str, Any], problems: Problems) -> dict[str, Any]:
    """Return the hyperparameters of one trial.

    Args:
        tree: ``hyperparameters`` as written: constants, search spaces (``{type: log, minval: -4, maxval: -1}``), and
            groups of both.
        picks: values by dotted name, which settle search spaces and override constants.
        problems: receives what is wrong: a space without a pick, a pick outside of its space, an unknown name.
    """
    unused = dict(picks)
    missing: list[str] = []
    values = _group(tree, "", unused, missing, problems)
    if missing:
        problems.report(
            "hyperparameters: ds-train runs one trial, so each search space needs one value:\n    "
            + "\n    ".join(missing)
        )
    for name in unused:
        problems.report(f"--hparam {name}: there is no such hyperparameter{did_you_mean(name, names(tree))}")
    return values


def names(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of all hyperparameters that can be chosen."""
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and not is_space(value):
            yield from names(value, name + ".")
        else:
            yield name


def _is_meant_as_space(value: Mapping[str, Any]) -> bool:
    """Return whether a mapping that is no search space looks like one whose type is misspelt."""
    return isinstance(value.get("type"), str) and bool(value.keys() & _BOUNDS)


def _group(
    tree: Mapping[str, Any], prefix: str, picks: dict[str, Any], missing: list[str], problems: Problems
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and (wrong := wrong_field(value)) is not None:
            field, allowed = wrong
            problems.add(f"hyperparameters.{name}.{field}", value.get(field), allowed)
            picks.pop(name, None)
            values[key] = None
        elif name in picks and is_space(value):
            values[key] = _picked(name, value, picks.pop(name), problems)
        elif name in picks:
            values[key] = picks.pop(name)
        elif is_space(value):
            values[key] = _only_value(name, value, missing)
        elif isinstance(value, Mapping):
            values[key] = _group(value, name + ".", picks, missing, problems)
        else:
            values[key] = value
    return values


def wrong_field(space: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the wrong field of a search space and what is allowed there; None for a valid one and for a group."""
    if not is_space(space):
        if not _is_meant_as_space(space):
            return None
        return "type", f"write one of {', '.join(SPACES)}{did_you_mean(str(space['type']), SPACES)}"
    kind = space["type"]
    if kind == "const":
        return None if "val" in space else ("val", "write the value of the constant")
    if kind == "categorical":
        given = isinstance(space.get("vals"), list) and space["vals"]
        return None if given else ("vals", "write a list of values to choose from")
    for bound in ("minval", "maxval"):
        if not _is_number(space.get(bound)) or (kind == "int" and as_integer(space[bound]) is None):
            return bound, f"write {'a whole number' if kind == 'int' else 'a number'}"
    if kind == "log" and (not _is_number(space.get("base", 10)) or space.get("base", 10) <= 0):
        return "base", "write a number above 0"
    if space["minval"] > space["maxval"]:
        return "minval", f"write a number that is not above maxval ({space['maxval']})"
    return None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _only_value(name: str, space: Mapping[str, Any], missing: list[str]) -> Any:
    if space["type"] == "const":
        return space["val"]
    if space["type"] == "categorical" and len(space["vals"]) == 1:
        return space["vals"][0]
    missing.append(f"--hparam {name}=VALUE  ({_described(space)})")
    return None


def _picked(name: str, space: Mapping[str, Any], value: Any, problems: Problems) -> Any:
    kind = space["type"]
    if kind == "const":
        return value
    if kind == "categorical":
        fits = any(_same(value, option) for option in space.get("vals") or [])
    elif kind == "int":
        fits = type(value) is int and _between(value, space)
    else:
        fits = isinstance(value, int | float) and not isinstance(value, bool) and _between(value, space)
    if not fits:
        problems.report(f"--hparam {name}={shown(value)}: the search space is {_described(space)}")
    return value


def _same(value: Any, option: Any) -> bool:
    return bool(value == option) and isinstance(value, bool) == isinstance(option, bool)


def _limits(space: Mapping[str, Any]) -> tuple[float, float]:
    low, high = (float(space.get(key, math.nan)) for key in ("minval", "maxval"))
    if space["type"] == "log":
        base = float(space.get("base", 10))
        return base**low, base**high
    return low, high


def _between(value: float, space: Mapping[str, Any]) -> bool:
    try:
        low, high = _limits(space)
    except (TypeError, ValueError, OverflowError):
        return False
    slack = 1e-9 * max(abs(low), abs(high))  # 10 ** -4 and the 1e-4 that a user types differ in the last bit
    return low - slack <= value <= high + slack


def _described(space: Mapping[str, Any]) -> str:
    if space["type"] == "categorical":
        return f"one of {shown(space.get('vals'))}"
    try:
        low, high = (f"{limit:g}" for limit in _limits(space))
    except (TypeError, ValueError, OverflowError):
        return f"{space['type']} from {shown(space.get('minval'))} to {shown(space.get('maxval'))}"
    return f"{space['type']}, from {low} to {high}"


def accumulation_steps(hparams: Mapping[str, Any]) -> int | None:
    """Return K as ``overwrite_deepspeed_args`` or an inline ``deepspeed_config`` gives it, else None."""
    for name in ("overwrite_deepspeed_args", "deepspeed_config"):
        section = hparams.get(name)
        if isinstance(section, Mapping):
            steps = as_integer(section.get("gradient_accumulation_steps"))
            if steps is not None and steps >= 1:
                return steps
    return None
