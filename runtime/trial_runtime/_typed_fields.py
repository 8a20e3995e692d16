"""Check of dataclasses that were read from a file: their fields have the types that they are declared with."""

from __future__ import annotations

import functools
import types
import typing
from typing import Any, Literal, TypeVar

_Described = TypeVar("_Described")


def checked(found: _Described) -> _Described:
    """Return a dataclass whose fields have the types that they are declared with.

    Raises:
        TypeError: one has not; the message names it.
    """
    for name, hint in _types_of(type(found)).items():  # type: ignore[arg-type]
        if not _has_type(getattr(found, name), hint):
            raise TypeError(f"{name} is {getattr(found, name)!r:.80}")
    return found


@functools.lru_cache
def _types_of(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _has_type(value: object, hint: Any) -> bool:
    origin = typing.get_origin(hint)
    if origin is types.UnionType:
        return any(_has_type(value, each) for each in typing.get_args(hint))
    if origin is Literal:
        return value in typing.get_args(hint)
    if isinstance(value, bool):
        return hint is bool
    if hint is float and isinstance(value, int):
        return abs(value) < 1 << 1023
    return isinstance(value, origin or hint)
