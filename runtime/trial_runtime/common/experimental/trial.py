"""Trials of Determined's client, by their inner path."""

from trial_runtime.experimental._trial import TrialReference
from trial_runtime.experimental.client import OrderBy, Trial, TrialOrderBy, TrialSortBy, TrialState

__all__ = ["OrderBy", "Trial", "TrialOrderBy", "TrialReference", "TrialSortBy", "TrialState"]
