"""Communicate through gloo on CPUs, without a library that has to be compiled first."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import deepspeed.ops

from trial_runtime.pytorch.deepspeed._patches.patch import Patch

_OP = "deepspeed_shm_comm"


@contextlib.contextmanager
def apply() -> Iterator[None]:
    """Mark the shared-memory library as not available, which DeepSpeed compiles on Linux. Gloo does the same work."""
    former = deepspeed.ops.__compatible_ops__.get(_OP)
    deepspeed.ops.__compatible_ops__[_OP] = False
    try:
        yield
    finally:
        deepspeed.ops.__compatible_ops__[_OP] = former


PATCH = Patch(
    "shared_memory_comm",
    "On a CPU DeepSpeed compiles a communication library at the start of every training on a new machine.",
    in_run=apply,
)
