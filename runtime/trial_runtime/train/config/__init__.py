"""The experiment config of a run: parsed, checked, and turned into a run plan."""
