"""Determined's client over the runs on this machine: what needs a master raises an error that explains what to do.

The functions are the methods of one :class:`Determined`, made at the first call.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path

from trial_runtime._refusal import refused
from trial_runtime.experimental._checkpoint import Checkpoint
from trial_runtime.experimental._determined import Determined
from trial_runtime.experimental._experiment import Experiment
from trial_runtime.experimental._metrics import TrainingMetrics, TrialMetrics, ValidationMetrics
from trial_runtime.experimental._sorting import (
    CheckpointOrderBy,
    CheckpointSortBy,
    CheckpointState,
    DownloadMode,
    ExperimentOrderBy,
    ExperimentSortBy,
    ExperimentState,
    OrderBy,
    TrialOrderBy,
    TrialSortBy,
    TrialState,
)
from trial_runtime.experimental._trial import Trial


@functools.lru_cache(maxsize=1)
def _determined() -> Determined:
    return Determined()


def login(
    master: str | None = None,
    user: str | None = None,
    password: str | None = None,
    cert_path: str | None = None,
    cert_name: str | None = None,
    noverify: bool = False,
) -> None:
    """Do nothing but log that there is no master.

    Raises:
        ValueError: another function was called before.
    """
    if _determined.cache_info().currsize:
        raise ValueError(
            "You can only call login() once, before any other calls to any functions in the client module."
        )
    Determined(master, user, password, cert_path, cert_name, noverify)
    _determined()


def logout() -> None:
    """Do nothing."""


def get_experiment(experiment_id: int | str | Path) -> Experiment:
    """Return an experiment; see :meth:`Determined.get_experiment`."""
    return _determined().get_experiment(experiment_id)


def get_trial(trial_id: int | str | Path) -> Trial:
    """Return a trial; see :meth:`Determined.get_trial`."""
    return _determined().get_trial(trial_id)


def get_checkpoint(uuid: str) -> Checkpoint:
    """Return a checkpoint; see :meth:`Determined.get_checkpoint`."""
    return _determined().get_checkpoint(uuid)


def list_experiments(
    sort_by: ExperimentSortBy | None = None,
    order_by: OrderBy | None = None,
    experiment_ids: list[int] | None = None,
    labels: list[str] | None = None,
    users: list[str] | None = None,
    states: list[ExperimentState] | None = None,
    name: str | None = None,
    project_id: int | None = None,
) -> list[Experiment]:
    """Return the experiments; see :meth:`Determined.list_experiments`."""
    return _determined().list_experiments(sort_by, order_by, experiment_ids, labels, users, states, name, project_id)


def iter_trials_metrics(trial_ids: list[int], group: str) -> Iterable[TrialMetrics]:
    """Return the metrics of a group of several trials, trial by trial."""
    return _determined().iter_trials_metrics(trial_ids, group)


def stream_trials_metrics(trial_ids: list[int], group: str) -> Iterable[TrialMetrics]:
    """Return the metrics of a group of several trials, trial by trial."""
    return _determined().iter_trials_metrics(trial_ids, group)


def stream_trials_training_metrics(trial_ids: list[int]) -> Iterable[TrialMetrics]:
    """Return the training metrics of several trials."""
    return _determined().stream_trials_training_metrics(trial_ids)


def stream_trials_validation_metrics(trial_ids: list[int]) -> Iterable[TrialMetrics]:
    """Return the validation metrics of several trials."""
    return _determined().stream_trials_validation_metrics(trial_ids)


_NAME = "determined.experimental.client."
Model = refused(_NAME + "Model")
ModelOrderBy = refused(_NAME + "ModelOrderBy")
ModelSortBy = refused(_NAME + "ModelSortBy")
ModelVersion = refused(_NAME + "ModelVersion")
Oauth2ScimClient = refused(_NAME + "Oauth2ScimClient")
Project = refused(_NAME + "Project")
ResourcePool = refused(_NAME + "ResourcePool")
User = refused(_NAME + "User")
Workspace = refused(_NAME + "Workspace")
add_oauth_client = refused(_NAME + "add_oauth_client")
create_experiment = refused(_NAME + "create_experiment")
create_model = refused(_NAME + "create_model")
create_user = refused(_NAME + "create_user")
create_workspace = refused(_NAME + "create_workspace")
delete_workspace = refused(_NAME + "delete_workspace")
get_model = refused(_NAME + "get_model")
get_model_by_id = refused(_NAME + "get_model_by_id")
get_model_labels = refused(_NAME + "get_model_labels")
get_models = refused(_NAME + "get_models")
get_session_username = refused(_NAME + "get_session_username")
get_user_by_id = refused(_NAME + "get_user_by_id")
get_user_by_name = refused(_NAME + "get_user_by_name")
get_workspace = refused(_NAME + "get_workspace")
list_models = refused(_NAME + "list_models")
list_oauth_clients = refused(_NAME + "list_oauth_clients")
list_users = refused(_NAME + "list_users")
list_workspaces = refused(_NAME + "list_workspaces")
remove_oauth_client = refused(_NAME + "remove_oauth_client")
whoami = refused(_NAME + "whoami")

__all__ = [
    "Checkpoint",
    "CheckpointOrderBy",
    "CheckpointSortBy",
    "CheckpointState",
    "Determined",
    "DownloadMode",
    "Experiment",
    "ExperimentOrderBy",
    "ExperimentSortBy",
    "ExperimentState",
    "OrderBy",
    "TrainingMetrics",
    "Trial",
    "TrialMetrics",
    "TrialOrderBy",
    "TrialSortBy",
    "TrialState",
    "ValidationMetrics",
]
