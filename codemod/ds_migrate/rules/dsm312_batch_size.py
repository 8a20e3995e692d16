"""Give loaders the micro-batch size."""

from __future__ import annotations

import libcst as cst

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.project.module_index import TRIAL_METHODS
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import dotted

CODE = Code.BATCH_SIZE


def apply(ctx: RuleContext) -> None:
    called = {dotted(call.func) for part, f in ctx.trial.methods() for call in part.file.nodes(cst.Call, below=f)}
    inside = {f for _, f in ctx.trial.methods(*TRIAL_METHODS) if f"self.{f.name.value}" not in called}
    for use in ctx.trial.uses_of("get_per_slot_batch_size"):
        ctx.handle(use)
        if use.function not in inside or use.call is None or not use.file.may_change(use.node):
            continue  # where a trial that stays needs it, get_per_slot_batch_size() does for both
        if not use.file.edits.once(use.node, CODE):
            continue
        use.file.replace(use.node.attr, "get_train_micro_batch_size_per_gpu")
        ctx.converted(CODE, use.file, use.node, "the loader's batch size is the engine's micro-batch size")
