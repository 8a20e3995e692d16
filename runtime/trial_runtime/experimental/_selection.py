"""Sorted checkpoints of trials."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from trial_runtime.experimental._sorting import CheckpointOrderBy, CheckpointSortBy, OrderBy

if TYPE_CHECKING:
    from trial_runtime.experimental._checkpoint import Checkpoint
    from trial_runtime.experimental._trial import Trial

_KEYS: dict[CheckpointSortBy, Callable[[Checkpoint], Any]] = {
    CheckpointSortBy.UUID: lambda checkpoint: checkpoint.uuid,
    CheckpointSortBy.TRIAL_ID: lambda checkpoint: 0 if checkpoint._trial is None else checkpoint._trial.id,
    CheckpointSortBy.BATCH_NUMBER: lambda checkpoint: checkpoint._batches or 0,
    CheckpointSortBy.END_TIME: lambda checkpoint: checkpoint.report_time or "",
    CheckpointSortBy.STATE: lambda checkpoint: checkpoint.state.value,
}


def selected(
    trials: Sequence[Trial],
    sort_by: str | CheckpointSortBy | None,
    order_by: OrderBy | CheckpointOrderBy | None,
    max_results: int | None,
) -> list[Checkpoint]:
    """Return checkpoints of trials; see :meth:`Trial.list_checkpoints` for the arguments and errors."""
    if (sort_by is None) != (order_by is None):
        raise AssertionError("sort_by and order_by must be either both set, or neither.")
    if sort_by is not None and not isinstance(sort_by, str | CheckpointSortBy):
        raise ValueError("sort_by must be of type CheckpointSortBy or str")
    is_descending = order_by is not None and order_by.value == OrderBy.DESC.value
    if isinstance(sort_by, CheckpointSortBy) and sort_by is not CheckpointSortBy.SEARCHER_METRIC:
        found = [checkpoint for trial in trials for checkpoint in trial._checkpoints()]
        key = _KEYS[sort_by]
        if is_descending:  # of equal ones the later
            found.reverse()
        return sorted(found, key=key, reverse=is_descending)[:max_results]
    metric = sort_by if isinstance(sort_by, str) else None
    return best_first(trials, metric, None if order_by is None else not is_descending, max_results)


def best_first(
    trials: Sequence[Trial], metric: str | None, smaller_is_better: bool | None, max_results: int | None
) -> list[Checkpoint]:
    """Return the checkpoints that were validated with a metric, the best first; of equal ones the earlier first.

    Args:
        trials: the trials.
        metric: by default ``searcher.metric``.
        smaller_is_better: by default as the config has it, and False with ``metric``.
        max_results: how many at most.
    """
    judged = []
    for trial in trials:
        run = trial._run.info.run
        name = run.searcher_metric if metric is None else metric
        smaller = (metric is None and run.smaller_is_better) if smaller_is_better is None else smaller_is_better
        values = trial._validations()
        for checkpoint in trial._checkpoints():
            value = values.get(checkpoint._batches or 0, {}).get(name or "")
            if isinstance(value, int | float) and not math.isnan(value):
                judged.append((value if smaller else -value, checkpoint))
    return [checkpoint for _, checkpoint in sorted(judged, key=lambda pair: pair[0])][:max_results]
