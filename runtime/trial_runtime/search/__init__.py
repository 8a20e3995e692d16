"""Hyperparameter searches, decided as Determined's master decides them.

The decisions are one pure function of events, :func:`next_actions`; the trials' draws are a function of the seed.
"""

from trial_runtime.search.config import Search
from trial_runtime.search.draws import TrialDraw, draw_trials
from trial_runtime.search.state import SearchState, next_actions

__all__ = ["Search", "SearchState", "TrialDraw", "draw_trials", "next_actions"]
