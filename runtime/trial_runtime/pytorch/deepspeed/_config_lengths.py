"""Lengths of an experiment config, as they were before the conversion divided them by the accumulation steps."""

from __future__ import annotations

import copy
from typing import Any

# The fields that ds-migrate divides (ds_migrate.experiment.lengths). It reviews reads of scheduling_unit: a default of
# 100 is filled in where a config has none, and was not divided.
_FIELDS = (
    ("searcher", "max_length", "batches"),
    ("min_validation_period", "batches"),
    ("min_checkpoint_period", "batches"),
    ("profiling", "begin_on_batch"),
    ("profiling", "end_after_batch"),
)


def in_micro_batches(config: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the config whose lengths in batches count micro-batches.

    They are multiplied by ``hyperparameters.overwrite_deepspeed_args.gradient_accumulation_steps``.
    """
    result = copy.deepcopy(config)
    node: Any = config
    for key in ("hyperparameters", "overwrite_deepspeed_args", "gradient_accumulation_steps"):
        node = node.get(key) if isinstance(node, dict) else None
    steps = node.get("val") if isinstance(node, dict) else node  # {type: const, val: 4}
    if not isinstance(steps, int) or steps == 1:
        return result
    fields = [*_FIELDS]
    if (result.get("searcher") or {}).get("time_metric") == "batches":
        fields.append(("searcher", "max_time"))
    for *above, last in fields:
        parent: Any = result
        for key in above:
            parent = parent.get(key) if isinstance(parent, dict) else None
        if isinstance(parent, dict) and isinstance(parent.get(last), int):
            parent[last] *= steps
    return result
