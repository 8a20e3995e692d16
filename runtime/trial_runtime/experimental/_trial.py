"""Trials: the runs of ds-train, as Determined's client gives them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from trial_runtime._refusal import refused_method
from trial_runtime._run_metrics import read_reports
from trial_runtime.experimental._checkpoint import Checkpoint
from trial_runtime.experimental._metrics import TrialMetrics, metrics_of
from trial_runtime.experimental._runs import StartedRun, find_group, iter_checkpoints
from trial_runtime.experimental._selection import best_first, selected
from trial_runtime.experimental._sorting import CheckpointSortBy, OrderBy, TrialState

if TYPE_CHECKING:
    from trial_runtime.experimental._experiment import Experiment

STATES = {
    "running": TrialState.RUNNING,
    "completed": TrialState.COMPLETED,
    "stopped": TrialState.PAUSED,
    "failed": TrialState.ERROR,
}


class Trial:
    """A run of ds-train, of a search or on its own.

    Args:
        run: its directory.

    Attributes:
        id: its number.
        experiment_id: the number of its search; its own when it belongs to none.
        hparams: its hyperparameters.
        experiment_config: its experiment config.
    """

    id: int

    def __init__(self, run: StartedRun) -> None:
        self._run = run
        trial = run.info.trial
        self.id = self.trial_id = trial.trial_id
        self.experiment_id = trial.experiment_id
        self.hparams: dict[str, Any] = trial.hparams
        self.experiment_config: dict[str, Any] = trial._config

    @property
    def state(self) -> TrialState:
        """Return its state; a run that was stopped is paused, one that was killed is in error."""
        return STATES.get(self._run.state, TrialState.ERROR)

    @property
    def summary_metrics(self) -> dict[str, Any]:
        """Return the metrics last reported, as ``{"validation_metrics": {name: {"last": value}}}``, and of training as
        ``avg_metrics``."""
        groups = {"training": "avg_metrics", "validation": "validation_metrics"}
        found: dict[str, Any] = {}
        for report in read_reports(self._run.metrics_path):
            group = found.setdefault(groups.get(report.group, report.group), {})
            group.update({name: {"last": value} for name, value in report.metrics.items()})
        return found

    def list_checkpoints(
        self,
        sort_by: str | CheckpointSortBy | None = None,
        order_by: OrderBy | None = None,
        max_results: int | None = None,
    ) -> list[Checkpoint]:
        """Return its checkpoints, by default by ``searcher.metric``, the best first; of equal ones the earlier first.

        Args:
            sort_by: the name of a validation metric, or something else to sort by. With a metric, checkpoints that were
                not validated are left out.
            order_by: the order.
            max_results: how many at most.

        Raises:
            AssertionError: only one of ``sort_by`` and ``order_by`` is given.
            ValueError: ``sort_by`` is neither.
        """
        return selected([self], sort_by, order_by, max_results)

    def get_checkpoints(
        self, sort_by: str | CheckpointSortBy | None = None, order_by: OrderBy | None = None
    ) -> list[Checkpoint]:
        """Return its checkpoints; see :meth:`list_checkpoints`."""
        return self.list_checkpoints(sort_by, order_by)

    def top_checkpoint(self, sort_by: str | None = None, smaller_is_better: bool | None = None) -> Checkpoint:
        """Return the best checkpoint.

        Args:
            sort_by: the validation metric; by default ``searcher.metric``, in its direction.
            smaller_is_better: with ``sort_by``, whether a smaller one is better; by default it is not.

        Raises:
            ValueError: no checkpoint was validated with this metric.
        """
        found = best_first([self], sort_by, smaller_is_better, 1)
        if not found:
            raise ValueError("No checkpoints found for criteria.")
        return found[0]

    def select_checkpoint(
        self,
        latest: bool = False,
        best: bool = False,
        uuid: str | None = None,
        sort_by: str | None = None,
        smaller_is_better: bool | None = None,
    ) -> Checkpoint:
        """Return the latest checkpoint, the best one, or that of a name.

        Raises:
            AssertionError: not exactly one of ``latest``, ``best`` and ``uuid`` is given, or ``sort_by`` and
                ``smaller_is_better`` not together, or not with ``best``.
            ValueError: there is none.
        """
        if sum([bool(latest), bool(best), uuid is not None]) != 1:
            raise AssertionError("Exactly one of latest, best, or uuid must be set")
        if (sort_by is None) != (smaller_is_better is None):
            raise AssertionError("sort_by and smaller_is_better must be set together")
        if sort_by is not None and not best:
            raise AssertionError("`sort_by` and `smaller_is_better` parameters can only be used with `best`")
        if best:
            return self.top_checkpoint(sort_by, smaller_is_better)
        found = self.list_checkpoints(CheckpointSortBy.BATCH_NUMBER, OrderBy.DESC)
        if uuid is not None:
            found = [checkpoint for checkpoint in found if checkpoint.uuid == uuid]
        if not found:
            raise ValueError("No checkpoints found for criteria.")
        return found[0]

    def iter_metrics(self, group: str) -> Iterable[TrialMetrics]:
        """Return the metrics of a group, in the order of their reports."""
        return metrics_of(self._run.metrics_path, self.id, group)

    stream_metrics = iter_metrics

    def stream_training_metrics(self) -> Iterable[TrialMetrics]:
        """Return the training metrics."""
        return self.iter_metrics("training")

    def stream_validation_metrics(self) -> Iterable[TrialMetrics]:
        """Return the validation metrics."""
        return self.iter_metrics("validation")

    def logs(
        self,
        follow: bool = False,
        *,
        head: int | None = None,
        tail: int | None = None,
        container_ids: list[str] | None = None,
        rank_ids: list[int] | None = None,
        stdtypes: list[str] | None = None,
        min_level: Any = None,
        timestamp_before: str | int | None = None,
        timestamp_after: str | int | None = None,
        sources: list[str] | None = None,
        search_text: str | None = None,
    ) -> Iterable[str]:
        """Return the lines that its ranks printed, rank by rank.

        Args:
            head, tail: only the first, or the last, so many.
            rank_ids: only of these ranks.
            search_text: only lines with this text.
            follow, container_ids, stdtypes, min_level, timestamp_before, timestamp_after, sources: accepted and not
                used.
        """
        del follow, container_ids, stdtypes, min_level, timestamp_before, timestamp_after, sources
        ranks = {
            int(found[1]): file
            for file in (self._run.path / "log").glob("rank_*.log")
            if (found := re.fullmatch(r"rank_(\d{1,9})\.log", file.name)) is not None and file.is_file()
        }
        lines: Sequence[str] = [
            line
            for rank, file in sorted(ranks.items())
            if rank_ids is None or rank in rank_ids
            for line in file.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
            if search_text is None or search_text in line
        ]
        return iter(lines[:head] if head is not None else lines[-tail:] if tail else lines)

    iter_logs = logs

    def get_experiment(self) -> Experiment:
        """Return the search or run that it belongs to."""
        from trial_runtime.experimental._experiment import Experiment

        path = self._run.path
        return Experiment(find_group(path.parents[1] if path.parent.name == "trials" else path))

    def reload(self) -> None:
        """Do nothing: all is read when it is asked for."""

    kill = refused_method("determined.experimental.client.Trial.kill")

    def _checkpoints(self) -> Iterator[Checkpoint]:
        for name, batches in iter_checkpoints(self._run):
            yield Checkpoint(self._run.checkpoint_directory / name, self, batches)

    def _validations(self) -> dict[int, dict[str, Any]]:
        """Return the validation metrics by batches trained; a later report at the same batch counts."""
        return {report.batches: report.metrics for report in read_reports(self._run.metrics_path, "validation")}

    def __repr__(self) -> str:
        return f"Trial(id={self.id}, path={str(self._run.path)!r})"


TrialReference = Trial
