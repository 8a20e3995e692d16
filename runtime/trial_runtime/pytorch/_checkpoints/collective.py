"""Work that ranks share: when it fails on one, it fails on all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from trial_runtime import core

_T = TypeVar("_T")


class CollectiveError(RuntimeError):
    """Something failed on some ranks; the message names them and says how."""


def run_collectively(ranks: core.DistributedContext, act: Callable[[], _T], everywhere: bool = False) -> list[_T]:
    """Act on the chief, or on every rank. Collective.

    Returns:
        what each rank came to, ordered by rank; None for those that did not act.

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
