"""Metrics that need more than an average: reducers that see the values of every rank."""

from __future__ import annotations

import abc
import contextlib
import copy
import enum
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, overload


class Reducer(enum.Enum):
    """Reduction of the validation metrics of batches to one number. AVG gives every batch the same weight."""

    AVG = 1
    SUM = 2
    MAX = 3
    MIN = 4


class MetricReducer(abc.ABC):
    """Metric of values that are collected on each rank and reduced over all ranks at a report.

    How values come in is up to the subclass (an ``update`` method, usually).
    """

    @abc.abstractmethod
    def reset(self) -> None:
        """Forget all values. Called before each stretch of training and each validation."""

    @abc.abstractmethod
    def per_slot_reduce(self) -> Any:
        """Return this rank's values, as small a picklable object as possible."""

    @abc.abstractmethod
    def cross_slot_reduce(self, per_slot_metrics: Sequence[Any]) -> Any:
        """Return the metric; runs on every rank.

        Args:
            per_slot_metrics: what :meth:`per_slot_reduce` returned on each rank, ordered by rank.

        Returns:
            a dict of metrics when the reducer was wrapped without a name, else anything but a dict.
        """


class _SimpleReducer(MetricReducer):
    """A reducer made of a function of the list of all values."""

    def __init__(self, fn: Callable[[list[Any]], Any]) -> None:
        self.fn = fn
        self.reset()

    def reset(self) -> None:
        self.values: list[Any] = []

    def update(self, value: Any) -> None:
        """Add a value."""
        self.values.append(value)

    def per_slot_reduce(self) -> list[Any]:
        return self.values

    def cross_slot_reduce(self, per_slot_metrics: Sequence[Any]) -> Any:
        # Ranks get batches in turn: taking one value of each rank in turn restores the order of the data, as long as
        # update() is called once a batch.
        missing = object()
        rows = itertools.zip_longest(*per_slot_metrics, fillvalue=missing)
        return self.fn([value for row in rows for value in row if value is not missing])


class _Wrapped:
    """A registered reducer. Errors in its methods name it."""

    def __init__(self, reducer: MetricReducer, name: str | None, for_training: bool, for_validation: bool) -> None:
        self.reducer = reducer
        self.name = name
        self.for_training = for_training
        self.for_validation = for_validation

    def reset(self) -> None:
        self._call("reset")

    def per_slot_reduce(self) -> Any:
        return self._call("per_slot_reduce")

    def cross_slot_reduce(self, per_slot_metrics: Sequence[Any]) -> Any:
        return self._call("cross_slot_reduce", per_slot_metrics)

    def _call(self, method: str, *args: Any) -> Any:
        try:
            return getattr(self.reducer, method)(*args)
        except Exception as error:
            given = f" with {args[0]!r}" if args else ""
            raise ValueError(
                f'reducer of type {type(self.reducer).__name__} for name="{self.name}" failed in {method}(){given}'
            ) from error

    def metrics(self, per_slot_metrics: Sequence[Any]) -> dict[str, Any]:
        reduced = self.cross_slot_reduce(per_slot_metrics)
        if self.name is None and not isinstance(reduced, dict):
            raise AssertionError(
                f"{self.label} was wrapped with name=None but it did not return a dict of metrics; it returned a "
                f"{type(reduced).__name__}. Give wrap_reducer() a name to return a single metric."
            )
        if self.name is not None and isinstance(reduced, dict):
            raise AssertionError(
                f'{self.label} was wrapped with name set but it returned a dict anyway (name="{self.name}"). Leave the '
                "name out of wrap_reducer() to return several metrics."
            )
        return reduced if self.name is None else {self.name: reduced}

    @property
    def label(self) -> str:
        if isinstance(self.reducer, _SimpleReducer):
            return f"The reducer function {getattr(self.reducer.fn, '__name__', self.reducer.fn)}()"
        return f"The reducer {type(self.reducer).__name__}"


_R = TypeVar("_R", bound=MetricReducer)


class _PyTorchReducerContext:
    """The reducers of a trial; a part of its context."""

    def __init__(self, allgather_fn: Callable[[Any], list[Any]] = lambda stuff: [stuff]) -> None:
        self._wrapped_reducers: list[_Wrapped] = []
        self._allgather_fn = allgather_fn

    @overload
    def wrap_reducer(
        self, reducer: _R, name: str | None = None, for_training: bool = True, for_validation: bool = True
    ) -> _R: ...

    @overload
    def wrap_reducer(
        self,
        reducer: Callable[[list[Any]], Any],
        name: str | None = None,
        for_training: bool = True,
        for_validation: bool = True,
    ) -> _SimpleReducer: ...

    def wrap_reducer(
        self, reducer: Any, name: str | None = None, for_training: bool = True, for_validation: bool = True
    ) -> Any:
        """Register a metric that is computed from the values of all ranks.

        Args:
            reducer: a :class:`MetricReducer`, or a function of the flat list of all values given to ``update()``.
            name: name of the metric; None when the reducer returns a dict of metrics.
            for_training: report it with training metrics.
            for_validation: report it with validation metrics.

        Returns:
            the reducer; for a function, an object with ``update(value)``.

        Raises:
            AssertionError: when the reducer was wrapped before, or is neither.
        """
        if any(wrapped.reducer is reducer for wrapped in self._wrapped_reducers):
            raise AssertionError(f"wrap_reducer() was called twice with the same {type(reducer).__name__}.")
        if not isinstance(reducer, MetricReducer):
            if not callable(reducer):
                raise AssertionError(
                    f"wrap_reducer() takes a function or a MetricReducer, not a {type(reducer).__name__}."
                )
            reducer = _SimpleReducer(reducer)
        self._wrapped_reducers.append(_Wrapped(reducer, name, for_training, for_validation))
        return reducer

    def reset_reducers(self) -> None:
        """Make every reducer forget its values."""
        for wrapped in self._wrapped_reducers:
            wrapped.reset()

    @contextlib.contextmanager
    def _preserved_reducers(self) -> Iterator[None]:
        """Discard the values that reducers get inside."""
        kept = [copy.deepcopy(vars(wrapped.reducer)) for wrapped in self._wrapped_reducers]
        try:
            yield
        finally:
            for wrapped, state in zip(self._wrapped_reducers, kept, strict=True):
                vars(wrapped.reducer).clear()
                vars(wrapped.reducer).update(state)

    def reduce_metrics(self, for_training: bool) -> dict[str, Any]:
        """Return the reducers' metrics, on every rank. All ranks must call it: one allgather, none without reducers.

        Args:
            for_training: take those that were wrapped for training, else those for validation.
        """
        chosen = [w for w in self._wrapped_reducers if (w.for_training if for_training else w.for_validation)]
        if not chosen:
            return {}
        gathered = self._allgather_fn([wrapped.per_slot_reduce() for wrapped in chosen])
        return self.run_cross_slot_reduction(chosen, gathered)

    def run_cross_slot_reduction(self, reducables: Sequence[_Wrapped], gathered: Sequence[Any]) -> dict[str, Any]:
        """Reduce the gathered values; the second half of :meth:`reduce_metrics`.

        Args:
            reducables: registered reducers.
            gathered: for each rank, what ``per_slot_reduce`` of each of them returned.
        """
        metrics: dict[str, Any] = {}
        for wrapped, per_slot in zip(reducables, zip(*gathered, strict=True), strict=True):
            metrics.update(wrapped.metrics(per_slot))
        return metrics
