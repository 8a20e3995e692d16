"""Callbacks keep working; the checkpoint hooks now run on every rank.

What it does
    Leaves callbacks as they are and points at hooks whose meaning changes: ``on_checkpoint_save_start``,
    ``on_checkpoint_load_start`` (the dictionary holds no model or optimizer state), ``on_checkpoint_write_end`` and
    ``on_checkpoint_end`` (called on all ranks, not on the chief alone).

Why
    Every rank writes a part of a DeepSpeed checkpoint.

Numbers
    Unchanged.

References
    PyTorchCallback
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ds_migrate.plan import Plan
from ds_migrate.syntax.source import SourceFile

CODE = "DSM350"
NAME = "callbacks"

_CHANGED = {
    "on_checkpoint_save_start": "the checkpoint holds no models_state_dict: engines save their own",
    "on_checkpoint_load_start": "the checkpoint holds no models_state_dict: engines load their own",
    "on_checkpoint_write_end": "this hook runs on every rank, it ran on the chief alone",
    "on_checkpoint_end": "this hook runs on every rank, it ran on the chief alone",
}


def apply_file(file: SourceFile, plans: Sequence[Plan]) -> None:
    plan = plans[0]
    for node in file.nodes(cst.FunctionDef):
        if node.name.value == "on_training_epoch_start":
            if not plan.target.ships_helpers:
                plan.review(
                    CODE, file, node.name,
                    "in Determined 0.38 this hook fires after every report, always with epoch_idx 0",
                    "use on_training_epoch_end, or convert for the bundled runtime",
                )  # fmt: skip
        elif node.name.value in _CHANGED:
            owner = file.parent(file.parent(node)) if file.parent(node) is not None else None  # type: ignore[arg-type]
            if isinstance(owner, cst.ClassDef) and node not in [f for p in plans for _, f in p.trial.methods()]:
                plan.review(
                    CODE, file, node.name, _CHANGED[node.name.value],
                    "guard it with `if context.distributed.get_rank() == 0` where once is enough",
                )  # fmt: skip
