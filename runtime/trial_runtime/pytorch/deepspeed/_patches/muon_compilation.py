"""Compile the functions of DeepSpeed's Muon when they are called, not when their module is imported."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from deepspeed.runtime import compiler

from trial_runtime.pytorch.deepspeed._patches.patch import Patch


@contextlib.contextmanager
def apply() -> Iterator[None]:
    """Let DeepSpeed's ``@compile()``, which only Muon's module uses, wait for the first call of the function."""
    with mock.patch.object(compiler, "compile", lambda: compiled_when_called):
        yield


def compiled_when_called(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that compiles ``function`` in its first call; a function that is compiled inlines it."""

    @functools.cache
    def compiled() -> Callable[..., Any]:
        return torch.compile(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (function if torch.compiler.is_compiling() else compiled())(*args, **kwargs)

    return call


PATCH = Patch(
    "muon_compilation",
    "Each ZeRO engine has torch.compile set up for Muon, used or not: seconds of imports, and torch.distributions no "
    "longer checks its arguments.",
    in_process=apply,
)
