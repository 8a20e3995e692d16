"""Communicate through gloo on CPUs, without a library that has to be compiled first."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from trial_runtime.pytorch.deepspeed._patches.patch import Patch


@contextlib.contextmanager
def apply() -> Iterator[None]:
    """Leave out the shared-memory library, which DeepSpeed compiles on Linux. Gloo does the same work.

    DeepSpeed does not look for it either, which has a C compiler test for each of its operations (0.5 s a process).
    """
    comm: Any = importlib.import_module("deepspeed.comm.torch")  # ``deepspeed.comm`` has torch under this name
    with mock.patch.object(comm, "build_shm_op", lambda: None):
        yield


PATCH = Patch(
    "shared_memory_comm",
    "On a CPU DeepSpeed compiles a communication library at the start of every training on a new machine.",
    in_run=apply,
)
