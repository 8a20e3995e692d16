"""Functions that ranks run together: a failure on one is an error on all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from trial_runtime import core

_T = TypeVar("_T")


class CollectiveError(RuntimeError):
    """A failure on some ranks; the message names them and their errors."""


def run_collectively(ranks: core.DistributedContext, act: Callable[[], _T], everywhere: bool = False) -> list[_T]:
    """Run ``act`` on the chief, or on every rank. Collective.

    Returns:
        each rank's result, ordered by rank; None for ranks that did not run it.

    Raises:
        CollectiveError: on every rank, when one failed.
    """
    result, error = None, None
    if everywhere or ranks.rank == 0:
        try:
            result = act()
        except Exception as caught:
            error = caught
    outcomes = ranks.allgather((None if error is None else repr(error), result))
    failures = [f"rank {rank}: {message}" for rank, (message, _) in enumerate(outcomes) if message is not None]
    if failures:
        raise CollectiveError("; ".join(failures)) from error
    return [outcome for _, outcome in outcomes]
