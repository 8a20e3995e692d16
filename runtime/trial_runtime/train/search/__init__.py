"""Running of hyperparameter searches on one machine or several.

Each process that runs the same ``ds-train`` command on the search's directory claims trials and runs them; one of them
leads: it alone turns what trials did into events, and what is decided into assignments.
"""
