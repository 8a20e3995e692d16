"""Experiments: the searches and runs of ds-train, as Determined's client gives them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from trial_runtime._refusal import refused_method
from trial_runtime._run_metrics import validation_values
from trial_runtime.experimental._checkpoint import Checkpoint
from trial_runtime.experimental._runs import Group, find_group
from trial_runtime.experimental._selection import best_first, selected
from trial_runtime.experimental._sorting import CheckpointSortBy, ExperimentState, OrderBy, TrialSortBy
from trial_runtime.experimental._trial import Trial

_STATES = {
    "running": ExperimentState.RUNNING,
    "completed": ExperimentState.COMPLETED,
    "stopped": ExperimentState.PAUSED,
    "canceled": ExperimentState.CANCELED,
}
_NAME = "determined.experimental.client.Experiment."


class Experiment:
    """A search of ds-train, or one run on its own.

    Args:
        group: its directory.
    """

    def __init__(self, group: Group) -> None:
        self._group = group

    @property
    def id(self) -> int:
        """Return its number."""
        return self._group.number

    @property
    def name(self) -> str:
        """Return the ``name`` of its config; that of its directory when the config has none."""
        return str(self.config.get("name") or self._group.path.name)

    @property
    def config(self) -> dict[str, Any]:
        """Return its experiment config; empty while no trial has started."""
        runs = self._group.runs
        return runs[0].info.trial._config if runs else {}

    @property
    def state(self) -> ExperimentState:
        """Return its state; one that was stopped is paused, one that was killed is in error."""
        return _STATES.get(self._group.status, ExperimentState.ERROR)

    def get_trials(self, sort_by: TrialSortBy = TrialSortBy.ID, order_by: OrderBy = OrderBy.ASCENDING) -> list[Trial]:
        """Return its trials; those without a value to sort by come last.

        Args:
            sort_by: what they are sorted by; the number takes the place of what is not recorded here.
            order_by: the order.
        """
        trials = [Trial(run) for run in find_group(self._group.path).runs]
        key: Callable[[Trial], Any] = _TRIAL_KEYS.get(TrialSortBy(sort_by), _number)
        valued = [(key(trial), trial) for trial in trials]
        known = sorted((pair for pair in valued if pair[0] is not None), key=lambda pair: pair[0])
        if order_by is OrderBy.DESCENDING:
            known.reverse()
        return [trial for _, trial in known] + [trial for value, trial in valued if value is None]

    list_trials = get_trials

    def iter_trials(
        self,
        sort_by: TrialSortBy = TrialSortBy.ID,
        order_by: OrderBy = OrderBy.ASCENDING,
        limit: int | None = None,
    ) -> Iterator[Trial]:
        """Yield its trials; see :meth:`get_trials`. All come, whatever ``limit`` says: it was the size of a page."""
        del limit
        yield from self.get_trials(sort_by, order_by)

    def await_first_trial(self, interval: float = 0.1) -> Trial:
        """Wait for its first trial, looking every ``interval`` seconds."""
        while not (trials := self.get_trials()):
            time.sleep(interval)
        return trials[0]

    def wait(self, interval: float = 5.0) -> ExperimentState:
        """Wait until it has ended, looking every ``interval`` seconds; its state then. One that is paused is not waited
        for: nothing resumes it by itself."""
        while self.state is ExperimentState.RUNNING:
            time.sleep(interval)
        return self.state

    def list_checkpoints(
        self,
        sort_by: str | CheckpointSortBy | None = None,
        order_by: OrderBy | None = None,
        max_results: int | None = None,
    ) -> list[Checkpoint]:
        """Return the checkpoints of all its trials; see :meth:`Trial.list_checkpoints`."""
        return selected(self.get_trials(), sort_by, order_by, max_results)

    def top_checkpoint(self, sort_by: str | None = None, smaller_is_better: bool | None = None) -> Checkpoint:
        """Return the best checkpoint of all its trials; see :meth:`Trial.top_checkpoint`.

        Raises:
            AssertionError: no checkpoint was validated with this metric.
        """
        found = best_first(self.get_trials(), sort_by, smaller_is_better, 1)
        if not found:
            raise AssertionError(f"No checkpoints found for experiment {self.id}")
        return found[0]

    def top_n_checkpoints(
        self, limit: int, sort_by: str | None = None, smaller_is_better: bool | None = None
    ) -> list[Checkpoint]:
        """Return the best checkpoint of each of the ``limit`` best trials, the best first.

        Raises:
            AssertionError: no checkpoint was validated with this metric.
        """
        found = best_first(self.get_trials(), sort_by, smaller_is_better, None)
        if not found:
            raise AssertionError(f"No checkpoint found for experiment {self.id}")
        first_of_trial = {id(checkpoint._trial): checkpoint for checkpoint in reversed(found)}
        return [checkpoint for checkpoint in found if first_of_trial[id(checkpoint._trial)] is checkpoint][:limit]

    def reload(self) -> None:
        """Do nothing: all is read when it is asked for."""

    activate = refused_method(_NAME + "activate")
    add_label = refused_method(_NAME + "add_label")
    archive = refused_method(_NAME + "archive")
    cancel = refused_method(_NAME + "cancel")
    delete = refused_method(_NAME + "delete")
    delete_tensorboard_files = refused_method(_NAME + "delete_tensorboard_files")
    download_code = refused_method(_NAME + "download_code")
    get_pachyderm_config = refused_method(_NAME + "get_pachyderm_config")
    kill = refused_method(_NAME + "kill")
    move_to_project = refused_method(_NAME + "move_to_project")
    pause = refused_method(_NAME + "pause")
    remove_label = refused_method(_NAME + "remove_label")
    set_description = refused_method(_NAME + "set_description")
    set_labels = refused_method(_NAME + "set_labels")
    set_name = refused_method(_NAME + "set_name")
    set_notes = refused_method(_NAME + "set_notes")
    unarchive = refused_method(_NAME + "unarchive")

    def __repr__(self) -> str:
        return f"Experiment(id={self.id}, path={str(self._group.path)!r})"


def _number(trial: Trial) -> int:
    return trial.id


def _best_validation(trial: Trial) -> float | None:
    run = trial._run.info.run
    values = validation_values(trial._run.metrics_path, run.searcher_metric).values()
    return (min if run.smaller_is_better else max)(values, default=None)


def _latest_validation(trial: Trial) -> float | None:
    values = list(validation_values(trial._run.metrics_path, trial._run.info.run.searcher_metric).values())
    return values[-1] if values else None


def _batches(trial: Trial) -> int:
    return max((one.steps_completed for one in trial.iter_metrics("training")), default=0)


_TRIAL_KEYS: dict[TrialSortBy, Callable[[Trial], Any]] = {
    TrialSortBy.BEST_VALIDATION_METRIC: _best_validation,
    TrialSortBy.LATEST_VALIDATION_METRIC: _latest_validation,
    TrialSortBy.BATCHES_PROCESSED: _batches,
    TrialSortBy.STATE: lambda trial: trial.state.value,
}

ExperimentReference = Experiment
