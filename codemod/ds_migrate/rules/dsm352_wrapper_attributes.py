"""Report attributes set on a wrapped model, which DistributedDataParallel kept from the forward pass."""

from __future__ import annotations

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.rules.codes import Code
from ds_migrate.trial.wrapper_attributes import attributes_on_wrapper

CODE = Code.WRAPPER_ATTRIBUTES


def apply(ctx: RuleContext) -> None:
    for file, node, text in attributes_on_wrapper(ctx.trial):
        ctx.review(
            CODE, file, node,
            f"{text} is set on the model now: on several ranks DistributedDataParallel kept it, and the forward pass "
            "never saw it",
        )  # fmt: skip
