"""Accept ``config=`` beside ``args`` with a ``deepspeed_config``, as Determined's own examples give both."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch.distributed as dist

from trial_runtime.pytorch.deepspeed._patches.initialize_wrapper import around_initialize
from trial_runtime.pytorch.deepspeed._patches.patch import Patch

logger = logging.getLogger("trial_runtime.pytorch.deepspeed")


def apply() -> AbstractContextManager[None]:
    """Let ``config=`` win over ``args.deepspeed_config``, with one notice in a run."""
    warned = False

    @contextlib.contextmanager
    def hide_second(given: Mapping[str, Any]) -> Iterator[None]:
        nonlocal warned
        args = given.get("args")
        named = getattr(args, "deepspeed_config", None)
        if named is None or not (given.get("config") or given.get("config_params")):
            yield
            return
        if not warned and (not dist.is_initialized() or dist.get_rank() == 0):
            logger.warning(
                f"deepspeed.initialize() was given config= and args.deepspeed_config ({named!r}): config= is used. "
                "Leave args out to avoid this notice."
            )
        warned = True
        args.deepspeed_config = None  # type: ignore[union-attr]
        try:
            yield
        finally:
            args.deepspeed_config = named  # type: ignore[union-attr]

    return around_initialize(hide_second)


PATCH = Patch(
    "second_config",
    "DeepSpeed refuses config= beside args with a deepspeed_config, which Determined's own examples pass together.",
    in_run=apply,
)
