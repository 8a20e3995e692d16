"""Hyperparameter searches, decided as Determined's master decides them.

The decisions are one pure function of events, ``state.next_actions``; the trials' draws are a function of the seed,
``draws.draw_trials``. Nothing here reads a clock or a file.
"""
