"""Ranks, their collectives, and the run that they belong to."""

from trial_runtime.core._context import Context, _dummy_init
from trial_runtime.core._distributed import DistributedContext, DummyDistributedContext

__all__ = ["Context", "DistributedContext", "DummyDistributedContext", "_dummy_init"]
