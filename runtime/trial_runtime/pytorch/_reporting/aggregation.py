"""Aggregation of a trial's metrics: to numpy, over batches, over ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from trial_runtime.errors import InvalidExperimentException
from trial_runtime.pytorch._reducer import Reducer


def as_dict(metrics: Any, what: str) -> dict[str, Any]:
    """Return the metrics of a trial's method as a new dict; a tensor is the metric ``loss``.

    Tensors are copied on their device, which is not waited for before the next report.

    Raises:
        InvalidExperimentException: when it returned neither.
    """
    if isinstance(metrics, torch.Tensor):
        metrics = {"loss": metrics}
    if not isinstance(metrics, dict) and not isinstance(metrics, Mapping):
        raise InvalidExperimentException(
            f"{what} must return a dictionary of metrics or a scalar tensor, got {type(metrics).__name__}."
        )
    return {
        name: value.detach().clone() if isinstance(value, torch.Tensor) else value for name, value in metrics.items()
    }


def to_numpy(metrics: dict[str, Any]) -> dict[str, Any]:
    """Convert the metrics' tensors to numpy arrays."""
    converted = {}
    for name, value in metrics.items():
        if isinstance(value, torch.Tensor):
            value = value.detach()
            value = (value.float() if value.dtype == torch.bfloat16 else value).cpu().numpy()
        converted[name] = value
    return converted


def mean(values: Iterable[Any]) -> float | None:
    """Return the mean of the values that are not None; None when they are not numbers."""
    try:
        array = np.array([value for value in values if value is not None])
        return float(np.mean(array)) if array.size else None
    except (TypeError, ValueError):
        return None


def average_over_ranks(per_rank: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Average each metric over the ranks that reported it, batch by batch.

    Args:
        per_rank: for each reporting rank, the metrics of each of its batches.
    """
    if len(per_rank) == 1:
        return per_rank[0]
    averaged = []
    for batch in zip(*per_rank, strict=True):
        names = dict.fromkeys(name for metrics in batch for name in metrics)
        averaged.append({name: _mean_over_ranks([m[name] for m in batch if name in m]) for name in names})
    return averaged


def _mean_over_ranks(values: list[Any]) -> Any:
    present = [value for value in values if value is not None]
    try:
        average = np.mean(np.array(present), axis=0) if present else None
    except (TypeError, ValueError):
        return present[0]  # no numbers: the chief's
    return np.array(average) if present and isinstance(present[0], np.ndarray) else average


def average_over_batches(batch_metrics: list[dict[str, Any]]) -> dict[str, float | None]:
    """Average each metric over the batches that have it; None for what has no mean."""
    series: dict[str, list[Any]] = defaultdict(list)
    for metrics in batch_metrics:
        for name, value in metrics.items():
            series[name].append(value)
    return {name: mean(values) for name, values in series.items()}


def without_mean(batch_metrics: list[dict[str, Any]]) -> dict[str, str]:
    """Return the types of the metrics that have no mean because their values are no numbers, by name."""
    averages = average_over_batches(batch_metrics)
    return {
        name: type(value).__name__
        for metrics in batch_metrics
        for name, value in metrics.items()
        if averages[name] is None and value is not None
    }


def reducers_for(reducer: Reducer | dict[str, Reducer], names: Sequence[str]) -> dict[str, Reducer]:
    """Return the reducer of each validation metric.

    Raises:
        InvalidExperimentException: when the trial's dict does not cover exactly the metrics, or holds something else.
    """
    chosen = reducer if isinstance(reducer, dict) else dict.fromkeys(names, reducer)
    if set(chosen) != set(names):
        raise InvalidExperimentException(
            "Please provide a single evaluation reducer or provide a reducer for every validation metric. "
            f"evaluate_batch() returns {sorted(names)}, evaluation_reducer() has reducers for {sorted(chosen)}."
        )
    for name, value in chosen.items():
        if not isinstance(value, Reducer):
            raise InvalidExperimentException(
                f"evaluation_reducer() gives {value!r} for {name!r}; it must be a pytorch.Reducer (AVG, SUM, MAX, MIN)."
            )
    return chosen


def reduce_validation(
    per_rank: Sequence[list[dict[str, Any]]], reducers: dict[str, Reducer], names: Sequence[str]
) -> dict[str, Any]:
    """Reduce all ranks' batches to one value a metric; every batch has the same weight, wherever it was evaluated.

    Args:
        per_rank: for each rank, the metrics of each of its batches; may differ in length, may be empty.
    """
    batches = [metrics for rank in per_rank for metrics in rank]
    # Batch by batch first: pipeline stages give the same loss in different shapes.
    return {name: _reduced(name, reducers[name], [batch[name] for batch in batches]) for name in names}


def _reduced(name: str, reducer: Reducer, values: list[Any]) -> Any:
    try:
        return reduce_values(reducer, [reduce_values(reducer, value) for value in values])
    except TypeError as error:
        types = ", ".join(sorted({type(value).__name__ for value in values}))
        raise InvalidExperimentException(
            f"The validation metric {name!r} cannot be reduced over the batches ({reducer.name}): its values are of "
            f"the type {types}. Return numbers or tensors, or use context.wrap_reducer()."
        ) from error


def reduce_values(reducer: Reducer, metrics: Any, num_batches: Sequence[int] | None = None) -> Any:
    """Reduce values to one number.

    Args:
        reducer: the reduction.
        metrics: the values, an array or a list.
        num_batches: weights of the values in an average; None gives each the same.

    Raises:
        RuntimeError: there are more or fewer weights than values.
    """
    if reducer is Reducer.AVG:
        if num_batches and len(metrics) != len(num_batches):
            raise RuntimeError(
                f"Lengths of metrics and num_batches are not equal: {len(metrics)} != {len(num_batches)}."
            )
        return np.average(metrics, weights=num_batches)
    functions: dict[Reducer, Any] = {Reducer.SUM: np.sum, Reducer.MAX: np.max, Reducer.MIN: np.min}
    return functions[reducer](metrics)


def jsonable(value: Any) -> Any:
    """Convert ``value`` to JSON types: NaN and infinities become strings."""
    if isinstance(value, dict):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return jsonable(value.tolist())
    if isinstance(value, torch.Tensor):
        return jsonable(value.tolist())
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)
