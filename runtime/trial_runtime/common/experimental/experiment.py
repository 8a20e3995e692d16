"""Experiments of Determined's client, by their inner path."""

from trial_runtime.experimental._experiment import ExperimentReference
from trial_runtime.experimental._sorting import TERMINAL_STATES
from trial_runtime.experimental.client import Experiment, ExperimentOrderBy, ExperimentSortBy, ExperimentState, OrderBy

__all__ = [
    "TERMINAL_STATES",
    "Experiment",
    "ExperimentOrderBy",
    "ExperimentReference",
    "ExperimentSortBy",
    "ExperimentState",
    "OrderBy",
]
