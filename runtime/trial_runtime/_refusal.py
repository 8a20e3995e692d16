"""Stand-ins for names of Determined's library that exist here only to explain what to do instead."""

from __future__ import annotations

from typing import Any

from ds_migrate.names import advice_of

from trial_runtime.errors import NotProvidedError


def refuse(name: str) -> NotProvidedError:
    """Return the error for a use of ``name``, which is dotted and as Determined had it."""
    return NotProvidedError(f"{name} is not provided: {advice_of(name)}.")


def refused(name: str) -> Any:
    """Return a stand-in for the function or class ``name``: it can be imported, and calling it raises an error."""

    class Refused:
        def __new__(cls, *_: Any, **__: Any) -> Refused:
            raise refuse(name)

    Refused.__doc__ = f"Not provided: {advice_of(name)}."
    Refused.__name__ = Refused.__qualname__ = name.rpartition(".")[2]
    return Refused


def refused_method(name: str) -> Any:
    """Return a method that raises the error for ``name``."""

    def method(*_: Any, **__: Any) -> Any:
        raise refuse(name)

    method.__doc__ = f"Raise an error: {advice_of(name)}."
    method.__name__ = name.rpartition(".")[2]
    return method
