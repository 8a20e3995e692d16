"""Experiment configs: the YAML files whose ``entrypoint`` names a trial follow the trial's conversion.

Everything is cheap until a file really may name a converted trial; only then ruamel.yaml is imported.
"""

from __future__ import annotations

from ds_migrate.experiment.facts import facts_for
from ds_migrate.experiment.model import ConfigFacts, ConfigFile, TrialFacts
from ds_migrate.experiment.planning import plan
from ds_migrate.experiment.search_terms import may_name, needles

__all__ = ["ConfigFacts", "ConfigFile", "TrialFacts", "facts_for", "may_name", "needles", "plan"]
