"""Loaders ask for the micro-batch size.

What it does
    Where a loader is built or a batch is trained, ``get_per_slot_batch_size()`` becomes
    ``get_train_micro_batch_size_per_gpu()``. In ``__init__``, before there is an engine, the call stays, and so it does
    in a loader that the trial itself builds there (``len(self.build_training_data_loader())``).

Why
    The loader yields micro-batches, and their size is the engine's: it follows ``overwrite_deepspeed_args``. The
    engine itself is made with ``get_per_slot_batch_size()``, so both agree unless a config says otherwise.

Before
    def build_training_data_loader(self) -> DataLoader:
        return DataLoader(self.data, batch_size=self.context.get_per_slot_batch_size(), shuffle=True)

After
    def build_training_data_loader(self) -> DataLoader:
        return DataLoader(self.data, batch_size=self.context.get_train_micro_batch_size_per_gpu(), shuffle=True)

Numbers
    Unchanged.

References
    DeepSpeedTrialContext.get_train_micro_batch_size_per_gpu
"""

from __future__ import annotations

import libcst as cst

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.project.module_index import TRIAL_METHODS
from ds_migrate.syntax.nodes import dotted

CODE = "DSM312"
NAME = "batch-size"


def apply(ctx: RuleContext) -> None:
    called = {dotted(call.func) for part, f in ctx.trial.methods() for call in part.file.nodes(cst.Call, below=f)}
    inside = {f for _, f in ctx.trial.methods(*TRIAL_METHODS) if f"self.{f.name.value}" not in called}
    for use in ctx.trial.uses_of("get_per_slot_batch_size"):
        ctx.handle(use)
        if use.function not in inside or use.call is None or not use.file.edits.once(use.node, CODE):
            continue
        use.file.replace(use.node.attr, "get_train_micro_batch_size_per_gpu")
        ctx.converted(CODE, use.file, use.node, "the loader's batch size is the engine's micro-batch size")
