"""Check a config before ``deepspeed.initialize`` makes an engine of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from trial_runtime.pytorch.deepspeed._engine.initialize import check_arguments
from trial_runtime.pytorch.deepspeed._patches.initialize_wrapper import around_initialize
from trial_runtime.pytorch.deepspeed._patches.patch import Patch


def apply() -> AbstractContextManager[None]:
    """Let ``deepspeed.initialize`` refuse wrong configs with one error that lists everything.

    It raises InvalidDeepSpeedConfigException.
    """
    return around_initialize(_checked)


@contextlib.contextmanager
def _checked(given: Mapping[str, Any]) -> Iterator[None]:
    check_arguments(given)
    yield


PATCH = Patch(
    "config_check",
    "DeepSpeed stops at the first fault of a config, and ignores misspelt keys and values that exclude each other.",
    in_run=apply,
)
