"""A search as an Optuna study, for ``optuna-dashboard``: written from the search's own files and never read."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trial_runtime.search.config import Search
from trial_runtime.search.space import is_group, is_space
from trial_runtime.train.history.records import flattened
from trial_runtime.train.search.trial_progress import Standing

if TYPE_CHECKING:
    import optuna

FILE = "optuna.log"


def has_optuna() -> bool:
    """Return whether the extra ``search`` is installed."""
    return find_spec("optuna") is not None


class Mirror:
    """Writes the study anew, then what changes.

    Optuna has no rungs, no pause and no generator of Determined's, cannot reopen a finished trial, and cannot read a
    journal with a torn line: so nothing of a search depends on it.

    Args:
        path: the journal; one of an earlier process is replaced.
        name: the study's.
        search: the method.
        metric: the searcher's metric.
        hyperparameters: of the experiment config.
    """

    def __init__(self, path: Path, name: str, search: Search, metric: str, hyperparameters: Mapping[str, Any]) -> None:
        import optuna
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        # Names of metrics are experimental; and a value may lie just outside of a range that went through a power.
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        warnings.filterwarnings("ignore", message="Fixed parameter .* is out of range")
        # A lock that a killed process left would block for 30 seconds.
        for stale in (path, path.with_name(f"{path.name}.lock")):
            stale.unlink(missing_ok=True)
        backend = JournalFileBackend(str(path), lock_obj=JournalFileOpenLock(str(path)))
        self._study = optuna.create_study(
            storage=optuna.storages.JournalStorage(backend),
            study_name=name,
            direction="minimize" if search.smaller_is_better else "maximize",
        )
        self._study.set_metric_names([metric])
        self._metric = metric
        self._distributions = distributions(hyperparameters)
        self._trials: dict[int, optuna.Trial] = {}
        self._reported: dict[int, int] = {}
        self._states: dict[int, str] = {}

    def update(self, standings: Iterable[Standing]) -> None:
        """Write what is new: trials, validations, states."""
        for standing in standings:
            if standing.trial not in self._trials:
                self._add(standing)
            self._report(standing)
            if self._states.get(standing.trial) != standing.state:
                self._set_state(standing)

    def _add(self, standing: Standing) -> None:
        flat = flattened(standing.result.assignment.hparams)
        params = {name: _plain(flat[name]) for name in self._distributions if name in flat}
        self._study.enqueue_trial(params)
        trial = self._study.ask({name: self._distributions[name] for name in params})
        for name, value in (("trial", standing.trial), ("seed", standing.result.assignment.seed)):
            trial.set_user_attr(name, value)
        self._trials[standing.trial] = trial

    def _report(self, standing: Standing) -> None:
        points = standing.result.points(self._metric)
        for batches, value in points[self._reported.get(standing.trial, 0) :]:
            self._trials[standing.trial].report(value, int(batches))
        self._reported[standing.trial] = len(points)

    def _set_state(self, standing: Standing) -> None:
        import optuna

        trial, best = self._trials[standing.trial], standing.result.best
        trial.set_user_attr("state", standing.state)
        self._states[standing.trial] = standing.state
        states = optuna.trial.TrialState
        if standing.state == "completed" and best is not None:
            self._study.tell(trial, best.number(self._metric))
        elif standing.state in ("completed", "stopped"):
            self._study.tell(trial, state=states.PRUNED)
        elif standing.state in ("errored", "invalid_hp", "canceled"):
            self._study.tell(trial, state=states.FAIL)


def distributions(hyperparameters: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return Optuna's distribution of each search space, by dotted name."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    found: dict[str, Any] = {}
    for name, space in hyperparameters.items():
        if is_group(space):
            found.update(distributions(space, f"{prefix}{name}."))
        if not is_space(space) or space["type"] == "const":
            continue
        match space["type"]:
            case "categorical":
                found[prefix + name] = CategoricalDistribution([_plain(value) for value in space["vals"]])
            case "int":
                found[prefix + name] = IntDistribution(space["minval"], space["maxval"])
            case "double":
                found[prefix + name] = FloatDistribution(space["minval"], space["maxval"])
            case "log":
                base = space.get("base", 10)
                found[prefix + name] = FloatDistribution(base ** space["minval"], base ** space["maxval"], log=True)
    return found


def _plain(value: Any) -> Any:
    """Return a value as Optuna takes it: lists and mappings as their JSON text."""
    return value if value is None or isinstance(value, bool | int | float | str) else json.dumps(value)
