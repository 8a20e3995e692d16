"""Determined's client, by its inner path."""

from trial_runtime.experimental import (
    Checkpoint,
    Determined,
    Experiment,
    ExperimentReference,
    Model,
    ModelOrderBy,
    ModelSortBy,
    ModelVersion,
    OrderBy,
    Project,
    Trial,
    TrialOrderBy,
    TrialReference,
    TrialSortBy,
)
from trial_runtime.experimental._metrics import TrainingMetrics, TrialMetrics, ValidationMetrics

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
    "TrainingMetrics",
    "Trial",
    "TrialMetrics",
    "TrialOrderBy",
    "TrialReference",
    "TrialSortBy",
    "ValidationMetrics",
]
