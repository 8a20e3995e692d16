"""Experiment configs: the YAML files whose ``entrypoint`` names a trial follow the trial's conversion."""

from __future__ import annotations

from ds_migrate.experiment.model import ConfigFacts, TrialFacts

__all__ = ["ConfigFacts", "TrialFacts"]
