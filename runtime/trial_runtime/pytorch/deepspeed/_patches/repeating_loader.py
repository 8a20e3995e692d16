"""Give DeepSpeed's RepeatingLoader a length."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from deepspeed.runtime.dataloader import RepeatingLoader

from trial_runtime.pytorch.deepspeed._patches.patch import Patch


@contextlib.contextmanager
def apply() -> Iterator[None]:
    """Give RepeatingLoader the length of the loader inside, as Determined did: without a length there are no epochs."""
    kind: Any = RepeatingLoader
    if hasattr(kind, "__len__"):
        yield
        return
    with mock.patch.object(kind, "__len__", lambda self: len(self.loader), create=True):
        yield


PATCH = Patch(
    "repeating_loader",
    "DeepSpeed's RepeatingLoader has no length, so the epochs of a training loader inside it cannot be counted.",
    in_process=apply,
)
