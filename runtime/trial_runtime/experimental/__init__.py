"""Determined's client over the runs on this machine (:mod:`trial_runtime.experimental.client`), and the Native API."""

from trial_runtime.experimental import client
from trial_runtime.experimental._create import create, create_trial_instance, test_one_batch
from trial_runtime.experimental._experiment import ExperimentReference
from trial_runtime.experimental._trial import TrialReference
from trial_runtime.experimental.client import (
    Checkpoint,
    Determined,
    Experiment,
    Model,
    ModelOrderBy,
    ModelSortBy,
    ModelVersion,
    OrderBy,
    Project,
    Trial,
    TrialOrderBy,
    TrialSortBy,
)

__all__ = [
    "Checkpoint",
    "Determined",
    "Experiment",
    "ExperimentReference",
    "Model",
    "ModelOrderBy",
    "ModelSortBy",
    "ModelVersion",
    "OrderBy",
    "Project",
    "Trial",
    "TrialOrderBy",
    "TrialReference",
    "TrialSortBy",
    "client",
    "create",
    "create_trial_instance",
    "test_one_batch",
]
