"""The size of a micro-batch, as an expression where the engines are made."""

from __future__ import annotations

from collections.abc import Collection

import libcst as cst

from ds_migrate.syntax.nodes import argument, code, number, walk
from ds_migrate.trial.model import Trial


def micro_batch_size(trial: Trial, context: str, used: Collection[str], hparams: Collection[str]) -> str:
    """Return ``context.get_per_slot_batch_size()`` where the trial has a global batch size, else what its training
    loader is given. DeepSpeed uses the number for its own bookkeeping only, so 1 does where neither is there.

    ``context``: the expression of the context. ``used``: what the trial's files take from contexts. ``hparams``: the
    hyperparameters that every experiment config sets.
    """
    if {"get_per_slot_batch_size", "get_global_batch_size"} & {*used} or "global_batch_size" in hparams:
        return f"{context}.get_per_slot_batch_size()"
    for _, function in trial.methods("build_training_data_loader"):
        for node in walk(function):
            if isinstance(node, cst.Call) and (code(node.func).endswith("DataLoader")):
                given = argument(node, 1, "batch_size")
                if given is not None and isinstance(number(given.value), int):
                    return code(given.value)
    return "1"
