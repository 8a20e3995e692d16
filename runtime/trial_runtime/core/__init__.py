"""Ranks and what they tell each other."""

from trial_runtime.core._distributed import DistributedContext, DummyDistributedContext

__all__ = ["DistributedContext", "DummyDistributedContext"]
