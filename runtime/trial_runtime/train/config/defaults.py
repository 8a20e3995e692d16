"""Defaults of an experiment config."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

DEFAULTS: Mapping[str, Any] = {
    "data": {},
    "debug": False,
    "max_restarts": 0,
    "min_checkpoint_period": {"batches": 0},
    "min_validation_period": {"batches": 0},
    "optimizations": {
        "aggregation_frequency": 1,
        "average_aggregated_gradients": True,
        "average_training_metrics": True,
        "gradient_compression": False,
        "mixed_precision": "O0",
    },
    "perform_initial_validation": False,
    "profiling": {"enabled": False},
    "records_per_epoch": 0,
    "resources": {"slots_per_trial": 1},
    "scheduling_unit": 100,
    "checkpoint_policy": "best",
    "searcher": {"name": "single", "smaller_is_better": True},
}
"""What a Determined master fills in, as far as trial code reads it through ``get_experiment_config()``."""


def with_defaults(document: Mapping[str, Any], defaults: Mapping[str, Any] = DEFAULTS) -> dict[str, Any]:
    """Return a copy of a config with defaults for the fields that it lacks."""
    merged = copy.deepcopy(dict(document))
    for name, default in defaults.items():
        value = merged.get(name)
        if value is None:
            merged[name] = copy.deepcopy(default)
        elif isinstance(value, dict) and isinstance(default, Mapping) and not name.startswith("min_"):
            merged[name] = with_defaults(value, default)
    return merged
