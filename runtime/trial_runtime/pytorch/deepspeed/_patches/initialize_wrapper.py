"""Wrap calls of ``deepspeed.initialize``, for the patches that act around them."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import deepspeed


@contextlib.contextmanager
def around_initialize(hook: Callable[[Mapping[str, Any]], AbstractContextManager[None]]) -> Iterator[None]:
    """Enter ``hook(arguments)`` around each call of ``deepspeed.initialize`` that is made inside."""
    original = deepspeed.initialize

    @functools.wraps(original)
    def initialize(*args: Any, **kwargs: Any) -> Any:
        try:
            given = inspect.signature(original).bind(*args, **kwargs).arguments
        except TypeError:
            return original(*args, **kwargs)  # names the argument that does not exist
        with hook(given):
            return original(*args, **kwargs)

    deepspeed.initialize = initialize
    try:
        yield
    finally:
        if deepspeed.initialize is initialize:
            deepspeed.initialize = original
