"""Leave out messages of ``deepspeed.initialize`` that do not concern the user."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from ds_migrate.deepspeed_facts import ELEMENTWISE_OPTIMIZERS

from trial_runtime._log_filters import message_left_out
from trial_runtime.pytorch.deepspeed._patches.initialize_wrapper import around_initialize
from trial_runtime.pytorch.deepspeed._patches.patch import Patch

UNTESTED_OPTIMIZER = "You are using ZeRO with an untested optimizer"
NOT_STARTED = "Attempting to get learning rate from scheduler before it has started"
_ELEMENTWISE = frozenset(getattr(torch.optim, name.rpartition(".")[2]) for name in ELEMENTWISE_OPTIMIZERS)


def apply() -> AbstractContextManager[None]:
    """Leave out the warning about an untested optimizer where that is exact, and one that DeepSpeed itself causes."""
    return around_initialize(_notices_left_out)


@contextlib.contextmanager
def _notices_left_out(given: Mapping[str, Any]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(message_left_out(NOT_STARTED))
        if type(given.get("optimizer")) in _ELEMENTWISE:
            stack.enter_context(message_left_out(UNTESTED_OPTIMIZER))
        yield


PATCH = Patch(
    "initialize_notices",
    "DeepSpeed warns of optimizers that ZeRO trains exactly, and of a schedule that it reads too early itself.",
    in_run=apply,
)
