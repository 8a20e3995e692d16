"""Determined's client over the runs on this machine."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from trial_runtime._cluster_info import get_cluster_info
from trial_runtime._refusal import refused_method
from trial_runtime.experimental._checkpoint import Checkpoint
from trial_runtime.experimental._experiment import Experiment
from trial_runtime.experimental._metrics import TrialMetrics
from trial_runtime.experimental._runs import all_groups, find_group, find_run, run_in
from trial_runtime.experimental._sorting import ExperimentSortBy, ExperimentState, OrderBy
from trial_runtime.experimental._trial import Trial

logger = logging.getLogger("trial_runtime.experimental")
_NAME = "determined.experimental.client.Determined."


class Determined:
    """Experiments, trials and checkpoints of the run directories that ds-train leaves.

    They are those beside the run of this process, and those in ``runs`` of the working directory.

    Args:
        master, user, password, cert_path, cert_name, noverify: accepted and not used: there is no master.
    """

    def __init__(
        self,
        master: str | None = None,
        user: str | None = None,
        password: str | None = None,
        cert_path: str | None = None,
        cert_name: str | None = None,
        noverify: bool = False,
    ) -> None:
        del user, password, cert_path, cert_name, noverify
        if master is not None:
            logger.info(f"There is no connection to {master}: experiments are the run directories of ds-train.")

    def get_experiment(self, experiment_id: int | str | Path) -> Experiment:
        """Return an experiment by its number, directory name or path.

        Raises:
            ValueError: there is none, or several have the number.
        """
        return Experiment(find_group(experiment_id))

    def get_trial(self, trial_id: int | str | Path) -> Trial:
        """Return a trial by its number, directory name or path.

        Raises:
            ValueError: there is none, or several have the number.
        """
        return Trial(find_run(trial_id))

    def get_checkpoint(self, uuid: str) -> Checkpoint:
        """Return a checkpoint by its name or path; ``"latest"`` is the newest of this process's run.

        It is looked for in that run, or without ``ds-train`` in ``checkpoints`` of the working directory, and then in
        the other runs.

        Raises:
            CheckpointNotFound: there is none; the message lists those of the run.
        """
        from trial_runtime import core
        from trial_runtime.errors import CheckpointNotFound
        from trial_runtime.pytorch._checkpoints.store import CheckpointStore

        info = get_cluster_info()
        directory = Path("checkpoints") if info is None else Path(info.run.checkpoint_directory)
        try:
            path = CheckpointStore(directory.absolute(), core.DummyDistributedContext()).find(uuid).absolute()
        except CheckpointNotFound:
            for trial in (Trial(run) for group in all_groups() for run in group.runs):
                for checkpoint in trial._checkpoints():
                    if checkpoint.uuid == uuid:
                        return checkpoint
            raise
        return Checkpoint(path, _trial_of(path))

    def list_experiments(
        self,
        sort_by: ExperimentSortBy | None = None,
        order_by: OrderBy | None = None,
        experiment_ids: list[int] | None = None,
        labels: list[str] | None = None,
        users: list[str] | None = None,
        states: list[ExperimentState] | None = None,
        name: str | None = None,
        project_id: int | None = None,
    ) -> list[Experiment]:
        """Return the experiments.

        Args:
            sort_by: by name or number; the number takes the place of what is not recorded here.
            order_by: the order.
            experiment_ids, states: only these.
            name: only those whose name has this text.
            labels, users, project_id: accepted and not used.
        """
        del labels, users, project_id
        found = [
            experiment
            for experiment in map(Experiment, all_groups())
            if (experiment_ids is None or experiment.id in experiment_ids)
            and (states is None or experiment.state in states)
            and (name is None or name in experiment.name)
        ]
        by_name = sort_by is ExperimentSortBy.NAME
        is_descending = order_by is OrderBy.DESCENDING
        return sorted(found, key=lambda one: (one.name if by_name else "", one.id), reverse=is_descending)

    def iter_trials_metrics(self, trial_ids: list[int], group: str) -> Iterable[TrialMetrics]:
        """Yield the metrics of a group of several trials, trial by trial."""
        for trial_id in trial_ids:
            yield from self.get_trial(trial_id).iter_metrics(group)

    stream_trials_metrics = iter_trials_metrics

    def stream_trials_training_metrics(self, trial_ids: list[int]) -> Iterable[TrialMetrics]:
        """Return the training metrics of several trials."""
        return self.iter_trials_metrics(trial_ids, "training")

    def stream_trials_validation_metrics(self, trial_ids: list[int]) -> Iterable[TrialMetrics]:
        """Return the validation metrics of several trials."""
        return self.iter_trials_metrics(trial_ids, "validation")

    def logout(self) -> None:
        """Do nothing."""

    add_oauth_client = refused_method(_NAME + "add_oauth_client")
    create_experiment = refused_method(_NAME + "create_experiment")
    create_model = refused_method(_NAME + "create_model")
    create_user = refused_method(_NAME + "create_user")
    create_workspace = refused_method(_NAME + "create_workspace")
    delete_workspace = refused_method(_NAME + "delete_workspace")
    get_model = refused_method(_NAME + "get_model")
    get_model_by_id = refused_method(_NAME + "get_model_by_id")
    get_model_labels = refused_method(_NAME + "get_model_labels")
    get_models = refused_method(_NAME + "get_models")
    get_session_username = refused_method(_NAME + "get_session_username")
    get_user_by_id = refused_method(_NAME + "get_user_by_id")
    get_user_by_name = refused_method(_NAME + "get_user_by_name")
    get_workspace = refused_method(_NAME + "get_workspace")
    list_models = refused_method(_NAME + "list_models")
    list_oauth_clients = refused_method(_NAME + "list_oauth_clients")
    list_users = refused_method(_NAME + "list_users")
    list_workspaces = refused_method(_NAME + "list_workspaces")
    remove_oauth_client = refused_method(_NAME + "remove_oauth_client")
    whoami = refused_method(_NAME + "whoami")


def _trial_of(checkpoint: Path) -> Trial | None:
    """Return the trial whose run directory a checkpoint is in."""
    run = run_in(checkpoint.parent.parent)
    return None if run is None else Trial(run)
