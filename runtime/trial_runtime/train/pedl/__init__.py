"""``pedl``, what Determined was called in 2019: for the reference side of trials that import it."""

from __future__ import annotations

from typing import Any

from trial_runtime._cluster_info import ClusterInfo, get_cluster_info


def get_hyperparameter(name: str) -> Any:
    """Return a hyperparameter of the trial that runs.

    Raises:
        KeyError: there is none of this name.
    """
    return _run().trial.hparams[name]


def get_data_config() -> dict[str, Any]:
    """Return the block ``data`` of the experiment config."""
    return _run().user_data


def _run() -> ClusterInfo:
    info = get_cluster_info()
    if info is None:
        raise RuntimeError("pedl knows the hyperparameters of a run of ds-train or ds-verify, and none runs here")
    return info
