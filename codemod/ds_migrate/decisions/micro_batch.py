"""The size of a micro-batch, as an expression where the engines are made."""

from __future__ import annotations

import libcst as cst

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.syntax.nodes import argument, code, number, walk


def micro_batch_size(plan: RuleContext, context: str) -> str:
    """``context.get_per_slot_batch_size()`` where the trial has a global batch size, else what its training loader is
    given. DeepSpeed uses the number for its own bookkeeping only, so 1 does where nothing tells."""
    trial = plan.trial
    asked = {use.attr for context_names in plan.context_names.values() for use in context_names.uses}
    if asked & {"get_per_slot_batch_size", "get_global_batch_size"}:
        return f"{context}.get_per_slot_batch_size()"
    if plan.configured is not None and "global_batch_size" in plan.configured.always:
        return f"{context}.get_per_slot_batch_size()"
    for _, function in trial.methods("build_training_data_loader"):
        for node in walk(function):
            if isinstance(node, cst.Call) and (code(node.func).endswith("DataLoader")):
                given = argument(node, 1, "batch_size")
                if given is not None and isinstance(number(given.value), int):
                    return code(given.value)
    return "1"
