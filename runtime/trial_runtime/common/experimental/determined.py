"""The client's class, by its inner path."""

from trial_runtime.experimental.client import Determined, OrderBy

__all__ = ["Determined", "OrderBy"]
