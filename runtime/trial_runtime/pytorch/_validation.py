"""Validation: every batch is evaluated once, on whatever rank it lies, and weighs the same."""

from __future__ import annotations

from typing import Any

from trial_runtime.errors import InvalidExperimentException
from trial_runtime.pytorch import _rng
from trial_runtime.pytorch._metrics import as_dict, reduce_validation, reducers_for, to_numpy
from trial_runtime.pytorch._strategy import Strategy
from trial_runtime.pytorch._stream import ValidationData, check_loader, validation_loader


class Validation:
    """Validates a trial; builds its loader once.

    Args:
        strategy: the trial.
        test_mode: evaluate one batch only.
    """

    def __init__(self, strategy: Strategy, test_mode: bool = False) -> None:
        self.strategy = strategy
        self.context = strategy.context
        self.test_mode = test_mode
        self.loader: Any = None
        shard = strategy.shard
        whole = not strategy.evaluates_batches
        if shard.loads:
            loader = strategy.trial.build_validation_data_loader()
            if not whole or self._evaluates_whole:
                checks_off = self.context._data_repro_checks_disabled
                check_loader(loader, "build_validation_data_loader", checks_off, strategy.unlock)
                self.loader = validation_loader(loader) if whole else validation_loader(loader, shard.size, shard.rank)
                self._whole = loader

    @property
    def _evaluates_whole(self) -> bool:
        """Whether this rank runs ``evaluate_full_dataset``."""
        return self.context.distributed.rank == 0 or self.strategy.evaluates_in_lockstep

    def run(self) -> dict[str, Any]:
        """Validate once; the metrics, on every rank. Collective."""
        strategy, context = self.strategy, self.context
        callbacks = strategy.callbacks.values()
        context.reset_reducers()
        strategy.eval_mode()
        for callback in callbacks:
            callback.on_validation_start()
        metrics = self._evaluate_batches() if strategy.evaluates_batches else self._evaluate_full_dataset()
        metrics.update(to_numpy(context.reduce_metrics(for_training=False)))
        for callback in callbacks:
            callback.on_validation_end(metrics)
        return metrics

    def _evaluate_batches(self) -> dict[str, Any]:
        strategy, context = self.strategy, self.context
        callbacks = strategy.callbacks.values()
        for callback in callbacks:
            callback.on_validation_epoch_start()
        outputs = [to_numpy(metrics) for metrics in self._outputs()]
        for callback in callbacks:
            callback.on_validation_epoch_end(outputs)
        per_rank = context.distributed.allgather(outputs if strategy.shard.reports else [])
        if not any(per_rank):
            raise RuntimeError("validation_loader is empty: it gave no batch on any rank.")
        names = list(next(outputs[0] for outputs in per_rank if outputs))
        for rank, theirs in enumerate(per_rank):
            for metrics in theirs:
                if set(metrics) != set(names):
                    raise ValueError(
                        "Validation metric names must match across all batches of data: "
                        f"{sorted(names)} != {sorted(metrics)} (rank {rank})."
                    )
        return reduce_validation(per_rank, reducers_for(strategy.trial.evaluation_reducer(), names), names)

    def _outputs(self) -> list[dict[str, Any]]:
        """The metrics of each batch of this rank."""
        outputs: list[dict[str, Any]] = []
        data = ValidationData(self.loader) if self.loader is not None else None
        calls = self._calls()
        while calls is None or len(outputs) < calls:
            if data is not None and data.exhausted:
                break
            metrics = self.strategy.evaluate_batch(data, len(outputs))
            if self.strategy.shard.reports and not isinstance(metrics, dict):
                raise InvalidExperimentException(
                    f"evaluate_batch() must return a dictionary of metrics, got {type(metrics).__name__}."
                )
            outputs.append(as_dict(metrics, "evaluate_batch()") if self.strategy.shard.reports else {})
        if self.strategy.evaluates_in_lockstep:
            self._keep_step(len(outputs))
        return outputs

    def _keep_step(self, calls: int) -> None:
        """Evaluate as often as the rank with the most batches, for forwards that need all ranks; the result is dropped.

        Collective. Leaves generators and reducers as they were.
        """
        missing = max(self.context.distributed.allgather(calls)) - calls
        with _rng.preserved(), self.context._reducers_kept():
            for index in range(missing):
                self.strategy.evaluate_batch(ValidationData(validation_loader(self._whole)), calls + index)

    def _calls(self) -> int | None:
        """How many calls of ``evaluate_batch``; None when only the end of the data tells."""
        try:
            length = None if self.loader is None else len(self.loader)
        except TypeError:
            length = None
        if not self.strategy.shard.loads:
            raise InvalidExperimentException("This rank has no validation data.")
        calls = None if length is None else self.strategy.evaluation_batches(length)
        return 1 if self.test_mode and calls != 0 else calls

    def _evaluate_full_dataset(self) -> dict[str, Any]:
        metrics: Any = {}
        if self._evaluates_whole:
            metrics = self.strategy.trial.evaluate_full_dataset(data_loader=self.loader)
            if not isinstance(metrics, dict):
                raise TypeError(
                    f"evaluate_full_dataset() must return a dictionary of metrics, got {type(metrics).__name__}."
                )
            metrics = to_numpy(metrics)
        chiefs = self.context.distributed.broadcast(metrics)
        assert isinstance(chiefs, dict)
        return chiefs
