"""Validation: every batch is evaluated once, on whichever rank has it, with the same weight."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from typing import Any

from trial_runtime.errors import InvalidExperimentException
from trial_runtime.pytorch._data import rng
from trial_runtime.pytorch._data.training_data import ValidationData, check_loader, validation_loader
from trial_runtime.pytorch._loop.strategy import Strategy
from trial_runtime.pytorch._reporting.aggregation import as_dict, reduce_validation, reducers_for, to_numpy

logger = logging.getLogger("trial_runtime.pytorch")


class Validation:
    """Validation of a trial; builds its loader once.

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
            if not whole or self._evaluates_full_dataset:
                checks_off = self.context._data_repro_checks_disabled
                check_loader(loader, "build_validation_data_loader", checks_off, strategy.disable_checks_call)
                self.loader = validation_loader(loader) if whole else validation_loader(loader, shard.size, shard.rank)
                self._full_loader = loader
        if not whole:
            self._evaluation_count()  # problems of the data are reported before training

    @property
    def _evaluates_full_dataset(self) -> bool:
        """Return whether this rank runs ``evaluate_full_dataset``."""
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
        """Return the metrics of each batch of this rank."""
        outputs: list[dict[str, Any]] = []
        data = ValidationData(self.loader) if self.loader is not None else None
        for index, own in enumerate(self._evaluation_turns(data)):
            if not own:
                self._evaluate_padding(index)
                continue
            metrics = self.strategy.evaluate_batch(data, index)
            if self.strategy.shard.reports and not isinstance(metrics, dict):
                raise InvalidExperimentException(
                    f"evaluate_batch() must return a dictionary of metrics, got {type(metrics).__name__}."
                )
            outputs.append(as_dict(metrics, "evaluate_batch()") if self.strategy.shard.reports else {})
        return outputs

    def _evaluation_turns(self, data: ValidationData | None) -> Iterator[bool]:
        """Yield, for each call of ``evaluate_batch``, whether it is for a batch of this rank; else it is for the
        forward alone, which other ranks need. Collective.

        Raises:
            InvalidExperimentException: on all ranks, when one has no data and the number of calls is unknown.
        """
        strategy, ranks = self.strategy, self.context.distributed
        shard = strategy.shard
        count = self._evaluation_count()
        evaluates = (count is None or count > 0) and not (data is not None and data.exhausted)
        known = ranks.allgather((shard.rank, shard.loads, count, evaluates))
        counts = {rank: count for rank, loads, count, _ in known if loads}  # of each share of the data
        if not all(evaluates for *_, evaluates in known):
            strategy.share_buffers()  # a forward does that otherwise, and would wait for the rank that has none
        if any(counts.get(rank) is None for rank, loads, *_ in known if not loads):
            raise InvalidExperimentException(
                "A rank loads no validation data (should_build_data_loader), and the loader of those that share its "
                "data has no length: cannot determine how often it has to evaluate. Give the loader a __len__."
            )
        count = count if shard.loads else counts[shard.rank]
        lengths = [length for length in counts.values() if length is not None]
        most = max(lengths, default=0)
        if strategy.averages_over_ranks and count is not None:
            count = min(lengths)
            if count < most and ranks.rank == 0:
                logger.warning(
                    f"Shares of the validation data have {count} to {most} batches. What is evaluated together is "
                    f"averaged at once, so {count} of each count; the others are left out."
                )
        for index in itertools.count():
            own = (count is None or index < count) and not (data is not None and data.exhausted)
            if not strategy.evaluates_in_lockstep:
                continues = own
            elif len(lengths) == len(counts):
                continues = index < most
            else:
                continues = any(ranks.allgather(own))
            if not continues:
                return
            yield own

    def _evaluate_padding(self, index: int) -> None:
        """Evaluate for a forward that needs all ranks, and drop the result. Leaves generators and reducers as they
        were."""
        data = ValidationData(validation_loader(self._full_loader)) if self.loader is not None else None
        with rng.preserved(), self.context._preserved_reducers():
            self.strategy.evaluate_batch(data, index)

    def _evaluation_count(self) -> int | None:
        """Return the calls of ``evaluate_batch`` that this rank's data takes; None when only its end shows it, or
        without any."""
        try:
            length = None if self.loader is None else len(self.loader)
        except TypeError:
            length = None
        calls = None if length is None else self.strategy.evaluation_batches(length)
        return 1 if self.test_mode and calls != 0 else calls

    def _evaluate_full_dataset(self) -> dict[str, Any]:
        metrics: Any = {}
        self.strategy.share_buffers()  # not every rank runs a forward
        if self._evaluates_full_dataset:
            metrics = self.strategy.trial.evaluate_full_dataset(data_loader=self.loader)
            if not isinstance(metrics, dict):
                raise TypeError(
                    f"evaluate_full_dataset() must return a dictionary of metrics, got {type(metrics).__name__}."
                )
            metrics = to_numpy(metrics)
        chiefs = self.context.distributed.broadcast(metrics)
        assert isinstance(chiefs, dict)
        return chiefs
